-- ARGV: ttl, owner, incarnation, egress (0: any), generation (0: not compared), claimant (empty: never repeated).
local generation, claimant = num(ARGV[5]), ARGV[6]
local no = fence(num(ARGV[2]), ARGV[3])
if no then return no end
local v = redis.call('HMGET', head_key, 'e', 'g', 'cl')
if generation > 0 and generation < num(v[2]) then return head('generation') end
if claimant == '' or v[3] ~= claimant then
  redis.call('HSET', head_key, 'e', str(math.max(num(ARGV[4]), num(v[1]) + 1)), 'cl', claimant)
end
if generation > num(v[2]) then redis.call('HSET', head_key, 'g', str(generation)) end
renew()
return head('ok')

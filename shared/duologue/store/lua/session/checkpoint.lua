-- ARGV: ttl, owner, incarnation, number, blob. An older checkpoint never replaces a newer one.
local owner, number = num(ARGV[2]), num(ARGV[4])
local no = fence(owner, ARGV[3])
if no then return no end
local v = redis.call('HMGET', KEYS[2], 'o', 'n')
local by, last = num(v[1]), num(v[2])
if owner < by or (owner == by and number < last) then
  renew()
  return refusal('number', last)
end
if owner > by or number > last or not v[1] then
  redis.call('HSET', KEYS[2], 'o', str(owner), 'n', str(number), 'b', ARGV[5])
end
renew()
return { 'ok' }

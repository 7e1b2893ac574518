-- ARGV: ttl, generation (0: not known), digest. A gateway that does not know what became of its `activate`
-- names the digest it would have rotated to: that activation is undone, or refused when it comes late.
local generation, digest = num(ARGV[2]), ARGV[3]
if generation > 0 then
  local no = fence_generation(generation)
  if no then return no end
  redis.call('HSET', KEYS[1], 'gw', '')
else
  local v = redis.call('HMGET', KEYS[1], 'o', 'x', 'td', 'g')
  if v[2] or not v[1] then return refusal('gone') end
  if digest == '' then return refusal('generation', num(v[4])) end
  if v[3] == digest then
    redis.call('HSET', KEYS[1], 'gw', '')
  else
    redis.call('HSET', KEYS[1], 'vd', digest)
  end
end
renew()
return { 'ok' }

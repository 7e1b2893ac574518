-- ARGV: ttl, owner, incarnation, heir's incarnation. The session is the heir's from here on, under the next number;
-- repeated, it answers the same.
local owner, heir = num(ARGV[2]), ARGV[4]
local v = redis.call('HMGET', KEYS[1], 'o', 'oi', 'x')
if not v[3] and num(v[1]) == owner + 1 and v[2] == heir then
  renew()
  return record()
end
local no = fence(owner, ARGV[3])
if no then return no end
redis.call('HSET', KEYS[1], 'o', str(owner + 1), 'oi', heir, 'oa', '')
renew()
return record()

-- ARGV: ttl, owner, incarnation, generation, digest, principal, dialect, gateway, extra.
-- A gateway tells what it holds to a store that may have gone back in time: only what is missing or older is written.
-- The previous token is void then: nobody knows which one that was.
local no = fence(num(ARGV[2]), ARGV[3])
if no then return no end
local v = redis.call('HMGET', KEYS[1], 'g', 'td')
local generation, stored = num(ARGV[4]), num(v[1])
if generation < stored then return refusal('generation', stored) end
if generation > stored or not v[2] then
  redis.call('HSET', KEYS[1], 'g', ARGV[4], 'td', ARGV[5], 'pr', ARGV[6], 'di', ARGV[7], 'gw', ARGV[8], 'ex', ARGV[9])
  redis.call('HDEL', KEYS[1], 'pd')
end
renew()
return { 'ok' }

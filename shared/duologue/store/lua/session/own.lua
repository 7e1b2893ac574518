-- ARGV: ttl, above, incarnation, attempt, create (1 or 0), then of the new record: digest, principal, dialect,
-- gateway, generation, extra; then from (empty: whoever).
-- Takes the session under a number above everything known, and only from the incarnation that is named.
local above, incarnation, attempt, create = num(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1'
local v = redis.call('HMGET', KEYS[1], 'o', 'oi', 'oa', 'x')
if v[4] then return refusal('gone') end
local stored = num(v[1])
if attempt ~= '' and v[3] == attempt and v[2] == incarnation and stored > above then
  renew()
  return record()
end
if create and v[1] then return refusal('exists') end
if not create and not v[1] then return refusal('gone') end
if not create and ARGV[12] ~= '' and ARGV[12] ~= v[2] then return refusal('owner') end
redis.call('HSET', KEYS[1], 'o', str(math.max(stored, above) + 1), 'oi', incarnation, 'oa', attempt)
if create then
  redis.call('HSET', KEYS[1], 'td', ARGV[6], 'pr', ARGV[7], 'di', ARGV[8], 'gw', ARGV[9], 'g', ARGV[10], 'ex', ARGV[11])
end
renew()
return record()

-- ARGV: ttl. Owner and record as stored.
local v = redis.call('HMGET', KEYS[1], 'o', 'x')
if v[2] or not v[1] then return { 'gone' } end
return record()

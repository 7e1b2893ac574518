-- ARGV: ttl. Where numbering stands.
local v = redis.call('HMGET', head_key, 'o', 'e', 'x')
if v[3] or not (v[1] or v[2]) then return { 'none' } end
return head('ok')

-- ARGV: ttl, after seq, limit. The head, and entries as they are; the caller compares their numbers.
local v = redis.call('HMGET', head_key, 'x')
if v[1] then return { head('gone'), {} } end
return { head('ok'), redis.call('XRANGE', stream, str(num(ARGV[2]) + 1) .. '-0', '+', 'COUNT', ARGV[3]) }

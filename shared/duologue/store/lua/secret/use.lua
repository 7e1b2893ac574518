-- ARGV: how long from now the session that it opens may be resumed, ms. The secret outlives its own time for that.
local v = redis.call('HMGET', key, 'ex', 'un')
if not v[1] then return { 'gone' } end
local now = now_ms()
local until_ms = math.max(num(v[2]), now + num(ARGV[1]))
redis.call('HSET', key, 'un', str(until_ms))
keep(num(v[1]), until_ms, now)
return { 'ok' }

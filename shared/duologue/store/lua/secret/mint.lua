-- ARGV: time to live ms, principal, session preset, longest session ms. Repeated, it answers the same again.
local known = redis.call('HGET', key, 'ex')
if known then return { 'ok', num(known) } end
local now = now_ms()
local expires = now + num(ARGV[1])
redis.call('HSET', key, 'pr', ARGV[2], 'se', ARGV[3], 'ms', ARGV[4], 'ex', str(expires), 'un', '0')
keep(expires, 0, now)
return { 'ok', expires }

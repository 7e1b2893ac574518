local v = redis.call('HMGET', key, 'pr', 'se', 'ms', 'ex')
if not v[4] then return { 'gone' } end
local fresh = 0
if now_ms() < num(v[4]) then fresh = 1 end
return { 'ok', fresh, v[1], v[2], num(v[3]), num(v[4]) }

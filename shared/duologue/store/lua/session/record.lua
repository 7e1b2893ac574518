-- ARGV: ttl, owner, incarnation, id to keep from ('' keeps all), then (owner, unit, blob) each. Ids are <owner>-<unit>
-- and only grow: what is there, or is older than what is there, is skipped, so repeating is harmless.
-- s: iu, io: the last unit and the owner that wrote it.
local no = fence(num(ARGV[2]), ARGV[3])
if no then return no end
local v = redis.call('HMGET', KEYS[1], 'io', 'iu')
local by, last = num(v[1]), v[2] and num(v[2]) or -1
local added = false
for i = 5, #ARGV, 3 do
  local owner, unit = num(ARGV[i]), num(ARGV[i + 1])
  if owner > by or (owner == by and unit > last) then
    redis.call('XADD', KEYS[3], str(owner) .. '-' .. str(unit), 'b', ARGV[i + 2])
    by, last, added = owner, unit, true
  end
end
if added then redis.call('HSET', KEYS[1], 'io', str(by), 'iu', str(last)) end
if ARGV[4] ~= '' then redis.call('XTRIM', KEYS[3], 'MINID', '=', ARGV[4]) end
renew()
return { 'ok' }

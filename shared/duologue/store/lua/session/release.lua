-- ARGV: ttl, owner, incarnation. Deletes the session; a tombstone refuses what comes late.
local no = fence(num(ARGV[2]), ARGV[3])
if no then
  if no[1] == 'gone' and no[2] == num(ARGV[2]) and no[3] == ARGV[3] then return { 'ok' } end
  return no
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'x', '1', 'o', ARGV[2], 'oi', ARGV[3])
redis.call('PEXPIRE', KEYS[1], TOMB_MS)
return { 'ok' }

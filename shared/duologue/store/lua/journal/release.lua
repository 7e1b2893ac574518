-- ARGV: ttl, owner, incarnation. Deletes the journal; a tombstone refuses what comes late.
local no = fence(num(ARGV[2]), ARGV[3])
if no then
  if no[1] == 'gone' and no[2] == num(ARGV[2]) and no[3] == ARGV[3] then return { 'ok' } end
  return no
end
local egress = redis.call('HGET', head_key, 'e') or '0'
redis.call('DEL', head_key, stream)
redis.call('HSET', head_key, 'x', '1', 'o', ARGV[2], 'oi', ARGV[3], 'e', egress)
redis.call('PEXPIRE', head_key, TOMB_MS)
return { 'ok' }

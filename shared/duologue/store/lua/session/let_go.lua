-- ARGV: ttl, generation (0: not known), digest. A gateway that does not know what became of its `activate`
-- names the digest it would have rotated to: that activation is undone, and refused whenever it comes (again). Of so
-- many as VOID_BYTES hold the newest are known: there is one for each resume that had no answer.
local VOID_BYTES = 512
local generation, digest = num(ARGV[2]), ARGV[3]
if generation > 0 then
  local no = fence_generation(generation)
  if no then return no end
  redis.call('HSET', KEYS[1], 'gw', '')
else
  local v = redis.call('HMGET', KEYS[1], 'o', 'x', 'td', 'g', 'vd')
  if v[2] or not v[1] then return refusal('gone') end
  if digest == '' then return refusal('generation', num(v[4])) end
  if v[3] == digest then redis.call('HSET', KEYS[1], 'gw', '') end
  local known = v[5] or ''
  if not string.find(known, voided(digest), 1, true) then
    redis.call('HSET', KEYS[1], 'vd', string.sub(voided(digest) .. known, 1, VOID_BYTES))
  end
end
renew()
return { 'ok' }

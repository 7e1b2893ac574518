-- Prepended to every script in this folder. KEYS: s:{sid} c:{sid} in:{sid}. ARGV[1]: time to live, ms.
-- s: o, oi owner number and incarnation; oa the attempt that took it; g attachment generation; td, pd digests
-- of the resume token and of the previous one; vd digests whose activations were given up (`voided`); pr principal;
-- di dialect; gw the gateway that holds the attachment; ex opaque; x: over, and kept only to refuse latecomers.
-- c: o, n, b: the newest checkpoint's owner, number and blob.
local ttl = ARGV[1]
local TOMB_MS = '60000'

local function str(n) return string.format('%d', n) end
local function num(v) return tonumber(v) or 0 end

-- One of the digests in vd: its length goes before it, so that none is found in the middle of others.
local function voided(digest) return #digest .. ':' .. digest end

local function renew()
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('PEXPIRE', KEYS[2], ttl)
  redis.call('PEXPIRE', KEYS[3], ttl)
end

local function refusal(reason, number)
  local v = redis.call('HMGET', KEYS[1], 'o', 'oi')
  return { reason, num(v[1]), v[2] or '', number or 0 }
end

-- Lower is refused, higher is written, equal of another incarnation is refused. nil: go on.
local function fence(number, incarnation)
  local v = redis.call('HMGET', KEYS[1], 'o', 'oi', 'x')
  if v[3] then return refusal('gone') end
  local stored = num(v[1])
  if number < stored or (number == stored and incarnation ~= v[2]) then return refusal('owner') end
  if number > stored then redis.call('HSET', KEYS[1], 'o', str(number), 'oi', incarnation) end
  return nil
end

-- Nil: go on, and this generation is the stored one.
local function fence_generation(generation)
  local v = redis.call('HMGET', KEYS[1], 'o', 'g', 'x')
  if v[3] or not v[1] then return refusal('gone') end
  local stored = num(v[2])
  if generation < stored then return refusal('generation', stored) end
  if generation > stored then redis.call('HSET', KEYS[1], 'g', str(generation)) end
  return nil
end

local function record()
  local v = redis.call('HMGET', KEYS[1], 'o', 'oi', 'g', 'td', 'pr', 'di', 'gw', 'ex')
  return { 'ok', num(v[1]), v[2] or '', num(v[3]), v[4] or '', v[5] or '', v[6] or '', v[7] or '', v[8] or '' }
end

-- Prepended to every script in this folder. KEYS: jh:{sid} j:{sid}. ARGV[1]: time to live, ms.
-- jh: o, oi owner; e egress; g generation and cl claimant of the last claim; q last seq; do, dn last delivery;
-- c bytes ever written; f, fb, ft of the oldest entry: seq, value of c before it, time; x: over.
-- j: stream, id <seq>-0, m = "seq owner n time before", b = body.
local head_key, stream, ttl = KEYS[1], KEYS[2], ARGV[1]
local TOMB_MS = '60000'

local function str(n) return string.format('%d', n) end
local function num(v) return tonumber(v) or 0 end

local function now_ms()
  local t = redis.call('TIME')
  return num(t[1]) * 1000 + math.floor(num(t[2]) / 1000)
end

local function renew()
  redis.call('PEXPIRE', head_key, ttl)
  redis.call('PEXPIRE', stream, ttl)
end

local function head(status)
  local v = redis.call('HMGET', head_key, 'o', 'oi', 'e', 'q', 'do', 'dn', 'f', 'c', 'fb')
  local last = num(v[4])
  local first = v[7] and num(v[7]) or last + 1
  return { status, num(v[1]), v[2] or '', num(v[3]), last, num(v[5]), num(v[6]), first, num(v[8]) - num(v[9]) }
end

-- Lower is refused, higher is written, equal of another incarnation is refused. nil: go on.
local function fence(number, incarnation)
  local v = redis.call('HMGET', head_key, 'o', 'oi', 'x')
  if v[3] then return head('gone') end
  local stored = num(v[1])
  if number < stored or (number == stored and incarnation ~= v[2]) then return head('owner') end
  if number > stored then redis.call('HSET', head_key, 'o', str(number), 'oi', incarnation) end
  return nil
end

-- seq, owner, n, time, before: of one entry as XRANGE gives it.
local function meta(entry)
  local seq, owner, n, time, before = string.match(entry[2][2], '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return num(seq), num(owner), num(n), num(time), num(before)
end

-- Forget everything below `seq`, which is the oldest entry that stays (or the next seq when none does). How many
-- entries that were.
local function drop_below(seq, before, time)
  redis.call('HSET', head_key, 'f', str(seq), 'fb', str(before), 'ft', str(time))
  return redis.call('XTRIM', stream, 'MINID', '=', str(seq) .. '-0')
end

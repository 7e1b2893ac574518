-- Prepended to every script in this folder. KEYS: cs:{digest}. Age is the server's TIME.
-- cs: pr principal of the key that minted it; se the session preset, JSON; ms the longest session, ms (0: no
-- limit of its own); ex when it opens no more sessions; un until when it authenticates resumes, 0: none yet.
local key = KEYS[1]

local function str(n) return string.format('%d', n) end
local function num(v) return tonumber(v) or 0 end

local function now_ms()
  local t = redis.call('TIME')
  return num(t[1]) * 1000 + math.floor(num(t[2]) / 1000)
end

local function keep(expires, until_ms, now)
  redis.call('PEXPIRE', key, str(math.max(1, math.max(expires, until_ms) - now)))
end

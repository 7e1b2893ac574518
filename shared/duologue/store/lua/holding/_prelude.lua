-- Prepended to every script in this folder. KEYS: {due}:holders (who holds anything, by the time it said so) and
-- {due}:<incarnation> (its sessions, likewise). Age is the server's TIME.
local holders, held = KEYS[1], KEYS[2]

local function str(n) return string.format('%d', n) end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

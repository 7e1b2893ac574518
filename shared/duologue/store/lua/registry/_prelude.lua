-- Prepended to every script in this folder. KEYS: {registry}:due (who expires when), {registry}:who (records).
-- A member is "kind/id"; its record is "incarnation\n" and opaque bytes. Age is the server's TIME.
local due, who = KEYS[1], KEYS[2]

local function str(n) return string.format('%d', n) end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function incarnation_of(record) return string.match(record, '^([^\n]*)\n') end

local function live(now)
  local members = redis.call('ZRANGEBYSCORE', due, '(' .. str(now), '+inf')
  local records = {}
  for i, member in ipairs(members) do
    records[i] = redis.call('HGET', who, member) or ''
  end
  return records
end

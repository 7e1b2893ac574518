-- ARGV: ttl, max bytes, max age ms, owner, incarnation, egress, first seq, then (delivery owner, n, body) each.
-- A seq that is there is skipped, what is above the last one is appended: repeating a batch is harmless.
local SLACK_MS = 1000 -- age is looked at once a second, bytes with a 64th to spare: trimming reads entries
local GUESSES = 8 -- then by halves: time may have run as unevenly as it likes

local function share(over, all) return all > 0 and over / all or 0 end

local owner, incarnation, egress, first = num(ARGV[4]), ARGV[5], num(ARGV[6]), num(ARGV[7])
local v = redis.call('HMGET', head_key, 'o', 'oi', 'e', 'q', 'c', 'f', 'fb', 'ft', 'x')
if v[9] then return head('gone') end
local stored, stored_egress, last, bytes = num(v[1]), num(v[3]), num(v[4]), num(v[5])
if egress < stored_egress then return head('egress') end
if owner < stored or (owner == stored and incarnation ~= v[2]) then return head('owner') end

local oldest, before, oldest_ms = num(v[6]), num(v[7]), num(v[8])
local was_last, was_empty, now = last, oldest == 0 or oldest > last, now_ms()
if not v[4] then redis.call('DEL', stream) end
local at, trimmed = 0, 0
for i = 8, #ARGV, 3 do
  local seq = first + (i - 8) / 3
  if seq <= last then
    local id = str(seq) .. '-0'
    local there = redis.call('XRANGE', stream, id, id)[1]
    if there then
      local _, by, n = meta(there)
      if by ~= num(ARGV[i]) or n ~= num(ARGV[i + 1]) then return head('conflict') end
    end
  else
    local s = str(seq)
    redis.call('XADD', stream, s .. '-0', 'm',
      s .. ' ' .. ARGV[i] .. ' ' .. ARGV[i + 1] .. ' ' .. str(now) .. ' ' .. str(bytes), 'b', ARGV[i + 2])
    if at == 0 and was_empty then oldest, before, oldest_ms = seq, bytes, now end
    bytes = bytes + #ARGV[i + 2]
    last, at = seq, i
  end
end
if egress > stored_egress or owner > stored then
  redis.call('HSET', head_key, 'o', ARGV[4], 'oi', incarnation, 'e', ARGV[6])
end
if last > was_last then
  redis.call('HSET', head_key, 'q', str(last), 'do', ARGV[at], 'dn', ARGV[at + 1], 'c', str(bytes))
  if was_empty then
    redis.call('HSET', head_key, 'f', str(oldest), 'fb', str(before), 'ft', str(oldest_ms))
  end
  local max_bytes, max_age = num(ARGV[2]), num(ARGV[3])
  if bytes - before > max_bytes or now - oldest_ms > max_age + SLACK_MS then
    local keep_bytes = max_bytes
    if bytes - before > max_bytes then keep_bytes = max_bytes - math.floor(max_bytes / 64) end
    local stay = { last + 1, bytes, now }
    -- What is above `low` and below `high` goes or stays: to be found out. Bytes and time grow rather evenly, so the first
    -- that stays is near where they say: few entries are read, whose bodies are read with them. The oldest may stay, too:
    -- earlier releases left an older time in ft.
    local low, low_bytes, low_ms, high, high_bytes, high_ms, reads = oldest - 1, before, oldest_ms, last + 1, bytes, now, 0
    while high - low > 1 do
      local part = 0.5
      if reads < GUESSES then
        part = math.max(share(bytes - keep_bytes - low_bytes, high_bytes - low_bytes),
          share(now - max_age - low_ms, high_ms - low_ms))
      end
      local guess = low + math.max(1, math.min(high - low - 1, math.ceil((high - low) * part)))
      local seq, _, _, time, upto = meta(redis.call('XRANGE', stream, str(guess) .. '-0', '+', 'COUNT', '1')[1])
      if bytes - upto <= keep_bytes and now - time <= max_age then
        high, high_bytes, high_ms, stay = guess, upto, time, { seq, upto, time }
      else
        low, low_bytes, low_ms = seq, upto, time
      end
      reads = reads + 1
    end
    trimmed = drop_below(stay[1], stay[2], stay[3])
  end
end
-- Each renewal is two writes more for the append-only file; an eighth of the time to live is not missed.
if redis.call('PTTL', stream) < ttl * 7 / 8 then renew() end
local d = at > 0 and { ARGV[at], ARGV[at + 1] } or redis.call('HMGET', head_key, 'do', 'dn')
return { 'ok', last, num(d[1]), num(d[2]), trimmed }

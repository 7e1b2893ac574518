-- ARGV: ttl, through seq, owner and n of the last delivery that a checkpoint contains (owner 0: not compared).
-- Forget what the client has acknowledged; numbering stays. What no checkpoint contains an heir has from here alone.
local v = redis.call('HMGET', head_key, 'q', 'f', 'c', 'x')
if v[4] or not v[1] then return { 'none' } end
local through = math.min(num(ARGV[2]), num(v[1]))
local by, upto_n, first = num(ARGV[3]), num(ARGV[4]), num(v[2])
if by > 0 and first > 0 then
  local at, covered = through, first - 1
  while at > covered do -- from the end: few are not covered
    local from = math.max(at - 31, first)
    local some = redis.call('XRANGE', stream, str(from) .. '-0', str(at) .. '-0')
    for i = #some, 1, -1 do
      local seq, owner, n = meta(some[i])
      if owner < by or (owner == by and n <= upto_n) then
        covered = seq
        break
      end
    end
    at = from - 1
  end
  through = math.min(through, covered)
end
if v[2] and through >= num(v[2]) then
  local next = redis.call('XRANGE', stream, str(through + 1) .. '-0', '+', 'COUNT', '1')[1]
  if next then
    local seq, _, _, time, before = meta(next)
    drop_below(seq, before, time)
  else
    drop_below(num(v[1]) + 1, num(v[3]), now_ms())
  end
end
renew()
return head('ok')

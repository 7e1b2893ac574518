-- ARGV: ttl, through seq. Forget what the client has acknowledged; numbering stays.
local v = redis.call('HMGET', head_key, 'q', 'f', 'c', 'x')
if v[4] or not v[1] then return { 'none' } end
local through = math.min(num(ARGV[2]), num(v[1]))
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

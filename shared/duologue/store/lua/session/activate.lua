-- ARGV: ttl, presented digest, new digest (empty: only examine), principal, dialect, gateway, live gateways...
-- Compares and rotates the resume token, raises the generation, records who holds the attachment.
local presented, fresh = ARGV[2], ARGV[3]
local v = redis.call('HMGET', KEYS[1], 'o', 'x', 'td', 'pd', 'pr', 'di', 'gw', 'g', 'vd')
local current, previous, holder = v[3], v[4], v[7] or ''
if not v[1] or v[2] or not current then return { 'session_resume_expired', '' } end

local function held()
  for i = 7, #ARGV do
    if ARGV[i] == holder then return true end
  end
  return false
end

if v[5] ~= ARGV[4] or presented == '' or (fresh ~= '' and string.find(v[9] or '', voided(fresh), 1, true)) then
  return { 'invalid_resume_token', 'resume_token' }
end
local again = fresh ~= '' and current == fresh and previous == presented and holder == ARGV[6]
if not again and presented ~= current and (presented ~= previous or held()) then
  return { 'invalid_resume_token', 'resume_token' }
end
if v[6] ~= ARGV[5] then return { 'invalid_session_resume', 'dialect' } end
if fresh == '' then return record() end
if not again then
  redis.call('HSET', KEYS[1], 'td', fresh, 'pd', presented, 'gw', ARGV[6], 'g', str(num(v[8]) + 1))
end
renew()
return record()

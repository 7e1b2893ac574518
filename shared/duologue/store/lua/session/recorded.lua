-- ARGV: ttl. Everything recorded, oldest first: (id, blob) each.
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[3], '-', '+')) do
  found[#found + 1] = { entry[1], entry[2][2] }
end
return { 'ok', found }

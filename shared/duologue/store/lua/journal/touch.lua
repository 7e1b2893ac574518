-- ARGV: ttl, owner, incarnation.
local no = fence(num(ARGV[2]), ARGV[3])
if no then return no end
renew()
return { 'ok' }

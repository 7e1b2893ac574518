-- ARGV: ttl, owner, incarnation. From here an older owner's batches are refused.
local no = fence(num(ARGV[2]), ARGV[3])
if no then return no end
renew()
return head('ok')

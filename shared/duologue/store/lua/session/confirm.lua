-- ARGV: ttl, generation. The first frame of this generation has come: the previous token is void.
local no = fence_generation(num(ARGV[2]))
if no then return no end
redis.call('HDEL', KEYS[1], 'pd')
renew()
return { 'ok' }

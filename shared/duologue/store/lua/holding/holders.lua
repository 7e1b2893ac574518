-- ARGV: ttl ms. Those whose sessions' keys may still be there.
local expired = str(now_ms() - tonumber(ARGV[1]))
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', expired)) do
  redis.call('ZREM', holders, gone)
end
return redis.call('ZRANGEBYSCORE', holders, '-inf', '+inf')

-- ARGV: ttl ms, incarnation, how many are taken, those, then those that are left.
local now, taken = str(now_ms()), tonumber(ARGV[3])
for i = 4, #ARGV do
  if i < 4 + taken then
    redis.call('ZADD', held, now, ARGV[i])
  else
    redis.call('ZREM', held, ARGV[i])
  end
end
if redis.call('ZRANGEBYSCORE', held, '-inf', '+inf', 'LIMIT', '0', '1')[1] then
  redis.call('ZADD', holders, now, ARGV[2])
  redis.call('PEXPIRE', held, ARGV[1])
  redis.call('PEXPIRE', holders, ARGV[1])
else
  redis.call('ZREM', holders, ARGV[2])
end
return { 'ok' }

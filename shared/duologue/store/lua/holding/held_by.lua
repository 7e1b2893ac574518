-- ARGV: limit.
return redis.call('ZRANGEBYSCORE', held, '-inf', '+inf', 'LIMIT', '0', ARGV[1])

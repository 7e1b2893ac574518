-- ARGV: ttl. The newest checkpoint as it was written.
return redis.call('HMGET', KEYS[2], 'o', 'n', 'b')

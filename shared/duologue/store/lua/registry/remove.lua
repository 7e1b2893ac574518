-- ARGV: member, incarnation. Of no effect if another incarnation holds the id.
local there = redis.call('HGET', who, ARGV[1])
if there and incarnation_of(there) == ARGV[2] then
  redis.call('ZREM', due, ARGV[1])
  redis.call('HDEL', who, ARGV[1])
end
return { 0, {} }

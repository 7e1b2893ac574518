-- ARGV: member, incarnation, record, expiry ms, join (1 or 0). Renews one registration, returns all.
local member, incarnation, expiry = ARGV[1], ARGV[2], tonumber(ARGV[4])
local now = now_ms()
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', str(now))) do
  redis.call('ZREM', due, gone)
  redis.call('HDEL', who, gone)
end
local there = redis.call('HGET', who, member)
local replaced = 0
if there and ARGV[5] ~= '1' and incarnation_of(there) ~= incarnation then
  replaced = 1
else
  redis.call('ZADD', due, str(now + expiry), member)
  redis.call('HSET', who, member, incarnation .. '\n' .. ARGV[3])
end
local keep = str(expiry * 10 + 60000)
redis.call('PEXPIRE', due, keep)
redis.call('PEXPIRE', who, keep)
return { replaced, live(now) }

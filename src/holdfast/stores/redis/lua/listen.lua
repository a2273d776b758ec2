-- listen: queue up for a hint, without asking for the key.
--
-- KEYS  1 the lock   2 those who wait (zset)
-- ARGV  1 the listener, "<channel> <number>"   2 ms after which listeners are forgotten
-- Reply 1 the key is free: no hint is needed, and none will come; 0 the listener is queued, at its old position if it
-- had one
--
-- Promises: no release falls between the check of the key and the position in the queue. A waiter that asks for the key
-- is queued by asking (`acquire`) and does not need this; it is for one that waits again without having asked.
-- The order is that of arrival, by the server's clock. Needs: EXISTS TIME ZADD PEXPIRE.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 1
end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 0

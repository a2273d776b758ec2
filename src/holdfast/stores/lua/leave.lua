-- leave: give up a place in the queue of a fair lock.
--
-- KEYS  1 the lock   2 tickets by arrival   3 tickets by expiry
-- ARGV  1 ticket   2 channel for hints
-- Reply 1 the ticket was there, 0 it was not
--
-- Promises: those behind are told when the key is free, for one of them is the head now and may have it.
-- Needs: ZREM EXISTS PUBLISH.
redis.call('ZREM', KEYS[3], ARGV[1])
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.pcall('PUBLISH', ARGV[2], '')
end
return 1

-- leave: give up a place in the queue of a fair lock.
--
-- KEYS  1 the lock   2 tickets by arrival   3 tickets by expiry   4 those who wait (zset)
-- ARGV  1 ticket
-- Reply 1 the ticket was there, 0 it was not
--
-- Promises: when the key is free the next one is woken, as by `release`: it may be the head now. If it is not, it tells
-- the head by asking.
-- Needs: ZREM EXISTS ZPOPMIN PUBLISH.
redis.call('ZREM', KEYS[3], ARGV[1])
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  for _ = 1, 32 do
    local listener = redis.pcall('ZPOPMIN', KEYS[4])[1]
    if not listener or redis.pcall('PUBLISH', string.match(listener, '(.+) '), listener) ~= 0 then
      break
    end
  end
end
return 1

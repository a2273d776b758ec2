-- unlisten: leave the line of those who wait, and pass on a hint that was not used.
--
-- KEYS  1 the lock   2 those who wait (zset)
-- ARGV  1 the listener
-- Reply 1 the listener was queued, 0 it was not
--
-- Promises: a listener that is no longer queued has been sent a hint, and a waiter that gives up then must not swallow
-- it: if the key is still free the next one is woken, as by `release`. Nothing is owed when the key is taken: its
-- holder wakes the next one in turn.
-- Needs: ZREM EXISTS ZPOPMIN PUBLISH.
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 then
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  for _ = 1, 32 do
    local listener = redis.pcall('ZPOPMIN', KEYS[2])[1]
    if not listener or redis.pcall('PUBLISH', string.match(listener, '(.+) '), listener) ~= 0 then
      break
    end
  end
end
return 0

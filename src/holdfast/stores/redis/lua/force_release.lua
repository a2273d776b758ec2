-- force_release: an operator takes a key from its holder, and the same step writes an audit record.
--
-- KEYS  1 the lock   2 the fence counter   3 the audit stream   4 those who wait (zset)
-- ARGV  1 key as people know it   2 actor   3 reason   4 most records to keep
-- Reply false when it was not held, else the record as names and values in turn
--       an error "HFTYPE <type>" (never deletes what is not a string), "HFFENCE …"
--
-- Promises: the fence written down is above every earlier one, so a guard that learns it shuts the old holder out. The
-- record is kept (about the newest ARGV[4] of them). The token is not in it.
-- The next of those who wait is woken, as by `release`.
-- Needs: GET SET DEL TYPE TIME XADD ZPOPMIN PUBLISH.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  return redis.error_reply('HFTYPE ' .. redis.call('TYPE', KEYS[1]).ok)
end
if not held then
  return false
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
-- There is no token here: the two sides of a split that break the same lock do so at different times.
local fence_text, count = next_fence(redis.call('GET', KEYS[2]), now, now_text, now_text .. held)
if not fence_text then
  return redis.error_reply('HFFENCE not a usable number')
end
local owner, previous = string.match(held, '^(%S+) hf1 %S+ %d+ (%d+) %S+$')
owner, previous = owner or '', previous or ''
redis.call('SET', KEYS[2], count)
local record = {'us', now_text, 'action', 'force_release', 'key', ARGV[1], 'actor', ARGV[2], 'reason', ARGV[3],
  'owner', owner, 'previous', previous, 'fence', fence_text}
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', unpack(record))
redis.call('DEL', KEYS[1])
for _ = 1, 32 do
  local listener = redis.pcall('ZPOPMIN', KEYS[4])[1]
  if not listener or redis.pcall('PUBLISH', string.match(listener, '(.+) '), listener) ~= 0 then
    break
  end
end
return record

-- acquire_raised: like acquire, with a least fence; for a server that is one of a quorum.
--
-- KEYS  1 the lock   2 the fence counter of this database
-- ARGV  1 head: "<owner> hf1 <family>"   2 token   3 time to live in ms   4 the least fence that will do
-- Reply as acquire
--
-- Promises: a free key is granted with a fence above every earlier one of this database and not below the least one.
-- The least one came from the clock of another server, so this server's own does not raise it: then all of a quorum
-- give the same fence. A token that has the key already gets it again, its fence raised if it is too low and never
-- lowered, and gets a new expiry. After a grant the counter (in the form of fence.lua) is not below its fence. When
-- busy nothing is changed.
-- Needs: GET SET PTTL TYPE TIME.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  return redis.error_reply('HFTYPE ' .. redis.call('TYPE', KEYS[1]).ok)
end
local mine = ' ' .. ARGV[2]
if held and string.sub(held, -#mine) ~= mine then
  return {string.match(held, '^(%S+) hf1 ') or '', redis.call('PTTL', KEYS[1])}
end
local counter = redis.pcall('GET', KEYS[2])
if type(counter) == 'table' then
  return redis.error_reply('HFFENCE not a string')
end
local least, last = tonumber(ARGV[4]), tonumber(string.match(counter or '0', '^(%d+)%.?%d*$'))
if not last or not least or math.max(last, least) >= 9007199254740991 then
  return redis.error_reply('HFFENCE not a usable number')
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
local start, fence = ARGV[1] .. ' ' .. now_text, math.max(last + 1, least)
if held then
  local granted
  start, granted = string.match(held, '^(.*) (%d+) %S+$')
  fence = math.max(tonumber(granted), least)
end
local fence_text = string.format('%.0f', fence)
if fence > last then
  redis.call('SET', KEYS[2], fence > now and fence_text .. '.' .. now_text or fence_text)
end
local value = start .. ' ' .. fence_text .. mine
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return value

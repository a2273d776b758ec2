-- acquire_fair: like acquire, but in order of arrival. A place in the queue is itself a lease (a ticket).
--
-- KEYS  1 the lock   2 the fence counter   3 tickets by arrival (zset)   4 tickets by expiry in ms (zset)
--       5 those who wait (zset)
-- ARGV  1 head   2 token   3 time to live in ms   4 ticket   5 ticket's time to live in ms
--       6 the asker's listener, '' if it does not listen   7 ms after which listeners are forgotten
-- Reply as acquire; busy is {owner, ms, ahead}: `ahead` living tickets stand before ours. When the key is free and
--       only the queue is in the way, owner is nil and ms is the time the head's ticket has left.
--
-- Promises: only the head of the queue is granted; a ticket keeps its place for as long as its holder comes back in
-- time; a ticket whose time is over is dropped by the next caller, so a dead waiter cannot wedge the queue. The
-- ticket is used up by the grant. Both queue keys expire by themselves, one second after their last ticket.
-- Listeners are in the order of the tickets, so that a release wakes the head. A waiter that finds the key free and is
-- not the head (it was woken in the head's stead, or dropped a dead head) passes the hint on to the head only.
-- Does not promise anything against askers without a ticket: they ignore the queue.
-- Ticket times are the server's clock. Needs what acquire needs, and ZADD ZRANK ZREM ZRANGE ZSCORE ZRANGEBYSCORE
-- ZREMRANGEBYSCORE PUBLISH.
local listener = ARGV[6]
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  return redis.error_reply('HFTYPE ' .. redis.call('TYPE', KEYS[1]).ok)
end
if held then
  local mine = ' ' .. ARGV[2]
  if string.sub(held, -#mine) == mine then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    if listener ~= '' then
      redis.pcall('ZREM', KEYS[5], listener)
    end
    return held
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

local dead = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now_ms)
for _, ticket in ipairs(dead) do
  redis.call('ZREM', KEYS[3], ticket)
end
if #dead > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now_ms)
end

-- Eviction may have taken one of the two queue keys: a ticket without an expiry is as good as dead.
local head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
while head and not redis.call('ZSCORE', KEYS[4], head) do
  redis.call('ZREM', KEYS[3], head)
  head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
end

if not held and (not head or head == ARGV[4]) then
  local now_text = string.format('%.0f', now)
  local fence_text, count = next_fence(redis.call('GET', KEYS[2]), now, now_text, ARGV[2])
  if not fence_text then
    return redis.error_reply('HFFENCE not a usable number')
  end
  local value = ARGV[1] .. ' ' .. now_text .. ' ' .. fence_text .. ' ' .. ARGV[2]
  redis.call('SET', KEYS[2], count)
  redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
  redis.call('ZREM', KEYS[3], ARGV[4])
  redis.call('ZREM', KEYS[4], ARGV[4])
  if listener ~= '' then
    redis.pcall('ZREM', KEYS[5], listener)
  end
  return value
end

local ahead = redis.call('ZRANK', KEYS[3], ARGV[4])
if not ahead then
  -- Two arrivals in one microsecond, or a clock that stepped back, must not change the order of arrival.
  local place = now
  local newest = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
  if newest and tonumber(newest) >= now then
    place = tonumber(newest) + 1
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', place), ARGV[4])
  ahead = redis.call('ZRANK', KEYS[3], ARGV[4])
end
redis.call('ZADD', KEYS[4], string.format('%.0f', now_ms + ARGV[5]), ARGV[4])
local latest = tonumber(redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2])
for i = 3, 4 do
  redis.call('PEXPIRE', KEYS[i], string.format('%.0f', latest - now_ms + 1000))
end
if listener ~= '' then
  redis.pcall('ZADD', KEYS[5], redis.call('ZSCORE', KEYS[3], ARGV[4]), listener)
  redis.pcall('PEXPIRE', KEYS[5], ARGV[7])
end

if held then
  return {string.match(held, '^(%S+) hf1 ') or '', redis.call('PTTL', KEYS[1]), ahead}
end
local place = redis.call('ZSCORE', KEYS[3], head)
for _, each in ipairs(redis.pcall('ZRANGEBYSCORE', KEYS[5], place, place)) do
  redis.call('ZREM', KEYS[5], each)
  redis.pcall('PUBLISH', string.match(each, '(.+) '), each)
end
return {false, redis.call('ZSCORE', KEYS[4], head) - now_ms, ahead}

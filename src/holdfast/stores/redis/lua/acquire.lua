-- acquire: give a free key to an asker, with a fence, in one atomic step.
--
-- KEYS  1 the lock   2 the fence counter of this database   3 those who wait (zset), only if the asker listens
-- ARGV  1 head: "<owner> hf1 <family>"   2 token   3 time to live in ms   and if the asker listens: 4 its listener
--       5 µs to put it ahead by (it was woken, came too late, and keeps its turn)   6 ms after which listeners are
-- forgotten Reply a string: granted; it is the value now stored, "<owner> hf1 <family> <granted µs> <fence> <token>"
--       {owner, ms}: busy; owner is '' when the value is not ours to read (another library), ms is -1 without expiry
--       an error "HFTYPE <type>": the key is there and is not a string; "HFFENCE …": the counter is unusable
--
-- Promises: the same token asked twice gets the same grant again with a new expiry. Every fence is above every
-- earlier one of this database (see fence.lua, which stands in front of this), and never below the server's clock in
-- µs, so that a flush, a restart without persistence or an eviction of the counter does not bring it back. It would
-- come back only if the counter were lost while it is ahead of the clock, because that was set back.
-- The holder's token never leaves the server.
-- The free key is the case to be quick for, so the counter moves first and the key is asked once: three commands. When
-- busy the counter has moved all the same, which wastes a number and breaks nothing; the key is not changed.
-- A waiter that listens is queued from the very step that found the key taken, so no release falls in between; it keeps
-- its position when it asks again, and leaves the queue when it is granted.
-- Needs: SET (with GET: 6.2) TIME GET PEXPIRE PTTL TYPE, and ZADD ZREM for those who listen.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
local last = redis.pcall('SET', KEYS[2], now_text, 'GET')
if type(last) == 'table' then
  if string.find(last.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('HFFENCE not a string')
  end
  return last
end
local fence_text = now_text
-- Nearly always the counter is as many digits as the clock, and less: then the fence is the clock, and all is done.
if last and (#last ~= #now_text or (tonumber(last) or now) >= now) then
  local count
  fence_text, count = next_fence(last, now, now_text, ARGV[2])
  redis.call('SET', KEYS[2], count or last)
  if not fence_text then
    return redis.error_reply('HFFENCE not a usable number')
  end
end
local value = ARGV[1] .. ' ' .. now_text .. ' ' .. fence_text .. ' ' .. ARGV[2]
if redis.call('SET', KEYS[1], value, 'PX', ARGV[3], 'NX') then
  if KEYS[3] then
    redis.pcall('ZREM', KEYS[3], ARGV[4])
  end
  return value
end
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  return redis.error_reply('HFTYPE ' .. redis.call('TYPE', KEYS[1]).ok)
end
local mine = ' ' .. ARGV[2]
if string.sub(held, -#mine) == mine then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  if KEYS[3] then
    redis.pcall('ZREM', KEYS[3], ARGV[4])
  end
  return held
end
if KEYS[3] then
  redis.pcall('ZADD', KEYS[3], 'NX', string.format('%.0f', now - ARGV[5]), ARGV[4])
  redis.pcall('PEXPIRE', KEYS[3], ARGV[6])
end
return {string.match(held, '^(%S+) hf1 ') or '', redis.call('PTTL', KEYS[1])}

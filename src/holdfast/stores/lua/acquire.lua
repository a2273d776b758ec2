-- acquire: give a free key to an asker, with a fence, in one atomic step.
--
-- KEYS  1 the lock   2 the fence counter of this database
-- ARGV  1 head: "<owner> hf1 <family>"   2 token   3 time to live in ms
-- Reply a string: granted; it is the value now stored, "<owner> hf1 <family> <granted µs> <fence> <token>"
--       {owner, ms}: busy; owner is '' when the value is not ours to read (another library), ms is -1 without expiry
--       an error "HFTYPE <type>": the key is there and is not a string; "HFFENCE …": the counter is unusable
--
-- Promises: the same token asked twice gets the same grant again and its expiry set anew. Every fence is above every
-- earlier one of this database: one above the counter, and never below the server's clock in µs, so that a flush, a
-- restart without persistence or an eviction of the counter does not bring it back. It would come back only if the
-- counter were lost and the server's clock stepped back over the time since, both at once.
-- The holder's token never leaves the server. Numbers here are doubles: exact below 2^53 (µs until the year 2255).
-- Changed nothing when busy. Needs: GET SET PEXPIRE PTTL TIME TYPE.
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  return redis.error_reply('HFTYPE ' .. redis.call('TYPE', KEYS[1]).ok)
end
if held then
  local mine = ' ' .. ARGV[2]
  if string.sub(held, -#mine) == mine then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return held
  end
  return {string.match(held, '^(%S+) hf1 ') or '', redis.call('PTTL', KEYS[1])}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence = now
local last = redis.call('GET', KEYS[2])
if last then
  last = tonumber(last)
  if not last or last < 0 or last >= 9007199254740991 then
    return redis.error_reply('HFFENCE not a usable number')
  end
  if last >= now then
    fence = last + 1
  end
end
local fence_text = string.format('%.0f', fence)
local value = ARGV[1] .. ' ' .. string.format('%.0f', now) .. ' ' .. fence_text .. ' ' .. ARGV[2]
redis.call('SET', KEYS[2], fence_text)
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return value

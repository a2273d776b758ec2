-- inspect: what is known about some keys.
--
-- KEYS  for each lock three: the lock, tickets by expiry, those who wait
-- ARGV  1 longest value that is read
-- Reply for each lock: false when there is no string, else {value, ms left or -1, living tickets, listeners}
--       an error "HFTYPE <type>" when one lock was asked for and it is not a string
--
-- Promises: changes nothing; a string too long to be a lock's value is cut, not sent whole. The value contains the
-- token: the client shows a fingerprint of it and nothing else. Listeners are those that
-- are queued for a hint: one for each process. Those of dead processes are counted until a release meets them.
-- Needs: GETRANGE EXISTS TYPE PTTL ZCOUNT ZCARD TIME.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, tickets, listeners = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local value = redis.pcall('GETRANGE', lock, 0, ARGV[1])
  if type(value) == 'table' then
    if #KEYS == 3 then
      return redis.error_reply('HFTYPE ' .. redis.call('TYPE', lock).ok)
    end
    answers[i] = false
  elseif value == '' and redis.call('EXISTS', lock) == 0 then
    answers[i] = false
  else
    local living = redis.call('ZCOUNT', tickets, '(' .. string.format('%.0f', now_ms), '+inf')
    answers[i] = {value, redis.call('PTTL', lock), living, redis.call('ZCARD', listeners)}
  end
end
return answers

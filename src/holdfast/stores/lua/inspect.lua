-- inspect: what is known about some keys.
--
-- KEYS  for each lock three: the lock, tickets by arrival, tickets by expiry
-- ARGV  1 longest value that is read   then for each lock its channel for hints
-- Reply for each lock: false when there is no string, else {value, ms left or -1, living tickets, listeners}
--       an error "HFTYPE <type>" when one lock was asked for and it is not a string
--
-- Promises: changes nothing; a string too long to be a lock's value is cut, not sent whole. The value contains the
-- token: the client shows a fingerprint of it and nothing else. Listeners are connections, 0 if they may not be counted.
-- Needs: GETRANGE EXISTS TYPE PTTL ZCOUNT TIME, and PUBSUB if it is permitted.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}
for i = 1, #KEYS / 3 do
  local lock, tickets = KEYS[3 * i - 2], KEYS[3 * i]
  local value = redis.pcall('GETRANGE', lock, 0, ARGV[1])
  if type(value) == 'table' then
    if #KEYS == 3 then
      return redis.error_reply('HFTYPE ' .. redis.call('TYPE', lock).ok)
    end
    answers[i] = false
  elseif value == '' and redis.call('EXISTS', lock) == 0 then
    answers[i] = false
  else
    local ears = redis.pcall('PUBSUB', 'NUMSUB', ARGV[i + 1])
    local living = redis.call('ZCOUNT', tickets, '(' .. string.format('%.0f', now_ms), '+inf')
    answers[i] = {value, redis.call('PTTL', lock), living, tonumber(ears[2]) or 0}
  end
end
return answers

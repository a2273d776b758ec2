-- release: compare and delete, and tell those who wait.
--
-- KEYS  1 the lock
-- ARGV  1 expected   2 '' when `expected` is the whole value, 'end' when the value must end with it (the grant's answer
--       was never seen, so only " <token>" is known)   3 ms to keep the key for (0: delete it)   4 channel for hints
-- Reply 1 released, 0 not ours (absent, other value, other type) and nothing changed
--
-- Promises: what is deleted is what was granted to this token. A kept key answers to nobody's token any more and goes
-- after min(its remaining time, ms). The hint is sent in the same step; a user without permission for the channel
-- releases all the same, and waiters find out by polling. A script and not DELEX/DELIFEQ, because those wake nobody;
-- they are the way out where scripts are forbidden.
-- Needs: GET DEL PUBLISH, and PTTL SET for kept keys.
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' then
  return 0
end
if ARGV[2] == '' then
  if held ~= ARGV[1] then
    return 0
  end
elseif string.sub(held, -#ARGV[1]) ~= ARGV[1] then
  return 0
end
local keep = tonumber(ARGV[3])
if keep == 0 then
  redis.call('DEL', KEYS[1])
else
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 and left < keep then
    keep = left
  end
  local nobody = string.gsub(held, '%S+$', '-')
  redis.call('SET', KEYS[1], nobody, 'PX', string.format('%.0f', keep))
end
redis.pcall('PUBLISH', ARGV[4], '')
return 1

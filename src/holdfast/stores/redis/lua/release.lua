-- release: compare and delete, and wake the next of those who wait.
--
-- KEYS  1 the lock   2 those who wait (zset of listeners "<channel> <number>", first come first)
-- ARGV  1 expected   2 '' when `expected` is the whole value, 'end' when the value must end with it (the grant's answer
--       was never seen, so only " <token>" is known)   3 ms to keep the key for (0: delete it)
-- Reply 1 released, 0 not ours (absent, other value, other type) and nothing changed
--
-- Promises: what is deleted is what was granted to this token. A kept key matches no token any more and goes
-- after min(its remaining time, ms); one waiter is woken all the same, because that may be sooner than it was told.
-- One is woken, not all: a woken waiter that does not take the key passes the hint on (`unlisten`), or joins the queue
-- again by asking (`acquire`). A channel without a listener belongs to a dead process, and the next one is tried; too
-- many of them in a row are left to polling. A user without permission for channels releases all the same. A script and
-- not DELEX/DELIFEQ, because those wake no waiter; they are the way out where scripts are forbidden.
-- Needs: GET DEL ZPOPMIN PUBLISH, and PTTL SET for kept keys.
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
  local kept = string.gsub(held, '%S+$', '-')
  redis.call('SET', KEYS[1], kept, 'PX', string.format('%.0f', keep))
end
for _ = 1, 32 do
  local listener = redis.pcall('ZPOPMIN', KEYS[2])[1]
  if not listener or redis.pcall('PUBLISH', string.match(listener, '(.+) '), listener) ~= 0 then
    break
  end
end
return 1

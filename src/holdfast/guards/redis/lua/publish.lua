-- publish: send a message to those who listen on a channel, under the fence of that channel and lock.
--
-- KEYS  1 the fence
-- ARGV  as in judge.lua, and 3 the channel   4 the message
-- Reply {'ok', how many this server handed it to}, or a refusal
--
-- Promises: once a newer holder has published, an older one's message is not sent. Delivery is not promised.
-- Needs: GET SET PUBLISH.
local refused = refusal() or register()
if refused then
  return refused
end
return { 'ok', redis.call('PUBLISH', ARGV[3], ARGV[4]) }

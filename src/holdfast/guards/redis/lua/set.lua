-- set: write a string under a fence.
--
-- KEYS  as in judge.lua
-- ARGV  as in judge.lua, and 3 the value   4 time to live in ms, '' for none, 'keep' for the one that is running
-- Reply {'ok'}, or a refusal; a hash is not replaced by a string
--
-- Promises: the expiry is the data's alone, the fence has none. The fence is written first: whatever stops the script
-- half-way (a user who may not SET the data) leaves a fence that is too high, never data without one.
-- Needs: GET SET TYPE.
local refused = refusal({ none = true, string = true }) or register()
if refused then
  return refused
end
if ARGV[4] == '' then
  redis.call('SET', KEYS[2], ARGV[3])
elseif ARGV[4] == 'keep' then
  redis.call('SET', KEYS[2], ARGV[3], 'KEEPTTL')
else
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
return { 'ok' }

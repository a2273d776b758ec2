-- hset: write fields of a hash under a fence; other fields stay.
--
-- KEYS  as in judge.lua
-- ARGV  as in judge.lua, and 3 time to live in ms for the whole hash, '' to leave it as it is   4… field, value, …
-- Reply {'ok'}, or a refusal
--
-- Promises: all fields or none. The fence first, as in set.lua.
-- Needs: GET SET TYPE HSET, and PEXPIRE with a time to live.
local refused = refusal({ none = true, hash = true }) or register()
if refused then
  return refused
end
-- In portions: Lua's stack takes some thousands of arguments.
for first = 4, #ARGV, 2000 do
  redis.call('HSET', KEYS[2], unpack(ARGV, first, math.min(first + 1999, #ARGV)))
end
if ARGV[3] ~= '' then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return { 'ok' }

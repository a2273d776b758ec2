-- hdel: remove fields of a hash under a fence.
--
-- KEYS  as in judge.lua
-- ARGV  as in judge.lua, and 3… fields
-- Reply {'ok', how many were there}, or a refusal
--
-- Promises: with its last field the hash goes, and its fence stays.
-- Needs: GET SET TYPE HDEL.
local refused = refusal({ none = true, hash = true }) or register()
if refused then
  return refused
end
local removed = 0
for first = 3, #ARGV, 2000 do
  removed = removed + redis.call('HDEL', KEYS[2], unpack(ARGV, first, math.min(first + 1999, #ARGV)))
end
return { 'ok', removed }

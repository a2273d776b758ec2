-- delete: remove data of any type under a fence, and keep the fence.
--
-- KEYS and ARGV as in judge.lua
-- Reply {'ok', 1} removed | {'ok', 0} there was nothing; or a refusal
--
-- Promises: no older holder can bring the data back, for the fence outlives it. A server that is out of memory refuses
-- to write the fence but not to delete, and after a delete it no longer refuses within the script; so there, and only
-- there, the fence is written second. Other clients still see one step.
-- Needs: GET SET DEL.
local refused = refusal()
if refused then
  return refused
end
local trouble = register()
if trouble and not string.find(trouble.err, 'OOM ', 1, true) then
  return trouble
end
local removed = redis.call('DEL', KEYS[2])
if trouble then
  redis.call('SET', KEYS[1], fence)
end
return { 'ok', removed }

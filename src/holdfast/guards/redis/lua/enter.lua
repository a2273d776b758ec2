-- enter: register a fence and read what it guards, in one atomic step.
--
-- KEYS and ARGV as in judge.lua
-- Reply {'ok', 'none'} | {'ok', 'string', value} | {'ok', 'hash', {field, value, …}}, or a refusal
--
-- Promises: no client with an older fence writes after this read. Absent data is registered too.
-- Needs: GET SET TYPE HGETALL.
local refused = refusal({ none = true, string = true, hash = true }) or register()
if refused then
  return refused
end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind == 'string' then
  return { 'ok', kind, redis.call('GET', KEYS[2]) }
end
if kind == 'hash' then
  return { 'ok', kind, redis.call('HGETALL', KEYS[2]) }
end
return { 'ok', 'none' }

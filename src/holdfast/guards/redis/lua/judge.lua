-- judge: the rule of every guard. It is prepended to each of the other scripts here, and does nothing alone.
--
-- KEYS  1 the fence   2 the data, of the same hash slot, for the scripts that touch data
-- ARGV  1 rule: 'at_least' | 'exactly' | 'none'   2 the fence presented, plain decimal digits ('' with 'none')
-- Gives `refusal(kinds)`: nil, or the reply that says why nothing may be done; `kinds`, if given, are the types of data
--       that the script can work on. `register()`: writes the presented fence, nil, or the error it met.
-- Replies of a refusal, before which nothing was changed:
--       {'stale', seen}          a newer fence was here
--       {'unregistered', seen}   rule 'exactly': an older one is stored, or none (false)
--       {'type', type}           the data is of a type that the script does not take
--       {'unusable'}             what is stored as the fence is none
--
-- Promises: the stored fence never goes down, and is not written when it is the same. Numbers here are doubles and
-- exact below 2^53 only, fences go up to 2^63 - 1: so they are texts, compared by length, and then in two parts that
-- are exact. Not as text, whose order is that of the server's locale.
-- Needs: GET SET TYPE.
local rule, fence, seen = ARGV[1], ARGV[2], false

local function below(one, other)
  if #one ~= #other then
    return #one < #other
  end
  local high, other_high = tonumber(string.sub(one, 1, 10)), tonumber(string.sub(other, 1, 10))
  if high ~= other_high then
    return high < other_high
  end
  return (tonumber(string.sub(one, 11)) or 0) < (tonumber(string.sub(other, 11)) or 0)
end

local function stored_fence()
  local stored = redis.pcall('GET', KEYS[1])
  if type(stored) == 'table' then
    if string.find(stored.err, 'WRONGTYPE', 1, true) then
      return nil, { 'unusable' }
    end
    return nil, stored
  end
  if stored and (#stored > 19 or not string.find(stored, '^%d+$') or string.find(stored, '^0%d')) then
    return nil, { 'unusable' }
  end
  return stored, nil
end

local function refusal(kinds)
  if rule ~= 'none' then
    local stored, trouble = stored_fence()
    if trouble then
      return trouble
    end
    seen = stored
    if seen and below(fence, seen) then
      return { 'stale', seen }
    end
    if rule == 'exactly' and seen ~= fence then
      return { 'unregistered', seen }
    end
  end
  if kinds then
    local kind = redis.call('TYPE', KEYS[2]).ok
    if not kinds[kind] then
      return { 'type', kind }
    end
  end
  return nil
end

local function register()
  if rule == 'none' or seen == fence then
    return nil
  end
  local done = redis.pcall('SET', KEYS[1], fence)
  return done.err and done or nil
end

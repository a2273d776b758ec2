-- fence: how fences are counted. It is prepended to the scripts that grant one, and does nothing alone.
--
-- Gives `next_fence(last, now, now_text, secret)`: the fence of a grant and the counter's next value, both as text; or
-- nil when the counter holds what is none.
--       last    the counter's value, false without one: "<fence>", or while it is ahead of the clock "<fence>.<clock>",
--               where clock is the server's, in µs, when that fence was given out
--       now     the server's clock in µs, and `now_text` the same in digits
--       secret  a text that no other grant has
--
-- Promises what `core/lease/fencing.py` does, whose rules these are: every fence is above the last one; with the
-- clock where that is ahead; else at three quarters of its pace, an hour a step at most; and by a chance number below
-- 2^20 when the clock is behind what it was. So a replica that missed the last grants does not give out the same
-- fences. Versions before this one read "<fence>.<clock>" as a number, and go on above it; what they write is a
-- "<fence>". Numbers here are doubles: exact below 2^53 (µs until the year 2255).
local function next_fence(last, now, now_text, secret)
  if not last then
    return now_text, now_text
  end
  local number = tonumber(last)
  if not number or number < 0 or number >= 9007199254740991 then
    return nil
  end
  local clock = number
  if string.find(last, '.', 1, true) then
    local whole, at = string.match(last, '^(%d+)%.(%d+)$')
    if not whole or #at > 16 then
      return nil
    end
    number, clock = tonumber(whole), tonumber(at)
  elseif number < now then
    return now_text, now_text
  end
  local step = 1
  if now < clock then
    step = 1 + tonumber(string.sub(redis.sha1hex(secret), 1, 5), 16)
  else
    step = math.max(1, math.min(math.floor((now - clock) * 0.75), 3600000000))
  end
  local fence = math.max(now, number + step)
  if fence >= 9007199254740991 then
    return nil
  end
  local fence_text = string.format('%.0f', fence)
  if fence == now then
    return fence_text, fence_text
  end
  return fence_text, fence_text .. '.' .. now_text
end

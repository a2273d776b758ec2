-- renew: set a new expiry for each key that still holds the value it was granted with.
--
-- KEYS  the locks, at most 250 a call: the server serves no other client meanwhile
-- ARGV  first the expected values, one for each key, then the times to live in ms, one for each key; an expected value
--       that begins with a space is " <token>", all that is known: then the value must end with it
-- Reply a string with one character for each key: '1' renewed, '0' not ours (absent, or any other value)
--
-- Promises: nothing but the expiry of our own keys is ever changed; a key of another type is not ours.
-- Needs: GET PEXPIRE.
local n = #KEYS
local answers = {}
for i = 1, n do
  local held, expected = redis.pcall('GET', KEYS[i]), ARGV[i]
  if string.byte(expected) == 32 and type(held) == 'string' then
    held = string.sub(held, -#expected)
  end
  if held == expected then
    redis.call('PEXPIRE', KEYS[i], ARGV[n + i])
    answers[i] = '1'
  else
    answers[i] = '0'
  end
end
return table.concat(answers)

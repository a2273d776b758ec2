-- seen: the highest fence that was registered. A script and not a GET, so that a client that reads from replicas asks
-- the primary, and a fence that is none is found.
--
-- KEYS  1 the fence
-- ARGV  1 'none'   2 ''
-- Reply {'ok', fence} | {'ok', false} none was | {'unusable'}
-- Needs: GET.
local stored, trouble = stored_fence()
return trouble or { 'ok', stored }

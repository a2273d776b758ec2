-- Contract: takes back one grant that nobody heard of. With `:expires_ns` only if the expiry is still the one that this
-- grant was given: somebody who has asked again with the same token since, or renewed it, has heard of it, and keeps it.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND token = :token
    AND (CAST(:expires_ns AS BIGINT) IS NULL OR expires_ns = :expires_ns)

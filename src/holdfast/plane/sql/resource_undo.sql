-- Contract: removes a grant whose client did not get the answer. With `:expires_ns` only if the expiry is still that of this
-- grant: a client that has repeated the request or renewed since knows its grant, and keeps it.
DELETE FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND token = :token
    AND (CAST(:expires_ns AS BIGINT) IS NULL OR expires_ns = :expires_ns)

-- Contract: the current holders of a resource, in the order of their grants.
SELECT * FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND expires_ns > :now_ns
ORDER BY fence

-- Contract: who holds a resource now, first come first.
SELECT * FROM plane_resource_lock
WHERE tenant = :tenant AND resource = :resource AND expires_ns > :now_ns
ORDER BY fence

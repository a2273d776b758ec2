-- Contract: holders of resources of all tenants, or of those of one name, after a place (`:tenant`, `:resource`, `:fence`),
-- by tenant, then by resource, then first come first.
SELECT * FROM plane_resource_lock
WHERE (tenant, resource, fence) > (:tenant, :resource, :fence) AND expires_ns > :now_ns
    AND (CAST(:only AS TEXT) IS NULL OR resource = :only)
ORDER BY tenant, resource, fence LIMIT :most

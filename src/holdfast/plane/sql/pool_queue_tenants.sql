-- Contract: at most `:most` tenants after `:after`, in alphabetical order, with jobs in the queue of a pool: the first
-- job of each, how many of its jobs are with workers, and its limit. Goes from tenant to tenant through the index, so
-- it costs the same for two waiting jobs of a tenant and for a million.
WITH RECURSIVE waiting (tenant, place) AS (
    SELECT * FROM (
        SELECT tenant, 1 FROM plane_job
        WHERE pool = :pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' AND tenant > :after
        ORDER BY tenant LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT next.tenant FROM plane_job AS next
        WHERE next.pool = :pool AND next.state IN ('PENDING', 'RETRYING') AND next.queue = 'pool'
            AND next.tenant > waiting.tenant
        ORDER BY next.tenant LIMIT 1
    ), waiting.place + 1
    FROM waiting WHERE waiting.tenant IS NOT NULL AND waiting.place < :most
)
SELECT waiting.tenant, COALESCE(plane_tenant.running, 0) AS running, plane_tenant.slots, (
    SELECT head.id FROM plane_job AS head
    WHERE head.pool = :pool AND head.state IN ('PENDING', 'RETRYING') AND head.queue = 'pool'
        AND head.tenant = waiting.tenant
    ORDER BY head.priority DESC, head.created_ns, head.id LIMIT 1
) AS head
FROM waiting LEFT JOIN plane_tenant ON plane_tenant.tenant = waiting.tenant
WHERE waiting.tenant IS NOT NULL ORDER BY waiting.place

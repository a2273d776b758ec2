-- Contract: the tenants after `:after` in alphabetical order, at most `:most`, who have jobs waiting for workers of a pool:
-- with the job at the head of the line of each, how many of their jobs are with workers, and how many may be.
-- Goes from tenant to tenant through the index, so it costs the same whether one of them has two jobs waiting or a million.
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

-- Contract: at most `:most` tenants after `:after`, in alphabetical order, with jobs in the queue of a topic: how many
-- of their jobs are with workers, and their limit. Goes from tenant to tenant through the index.
WITH RECURSIVE waiting (tenant, place) AS (
    SELECT * FROM (
        SELECT tenant, 1 FROM plane_job
        WHERE pool = :pool AND topic = :topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic'
            AND tenant > :after
        ORDER BY tenant LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT next.tenant FROM plane_job AS next
        WHERE next.pool = :pool AND next.topic = :topic AND next.state IN ('PENDING', 'RETRYING')
            AND next.queue = 'topic' AND next.tenant > waiting.tenant
        ORDER BY next.tenant LIMIT 1
    ), waiting.place + 1
    FROM waiting WHERE waiting.tenant IS NOT NULL AND waiting.place < :most
)
SELECT waiting.tenant, COALESCE(plane_tenant.running, 0) AS running, plane_tenant.slots
FROM waiting LEFT JOIN plane_tenant ON plane_tenant.tenant = waiting.tenant
WHERE waiting.tenant IS NOT NULL ORDER BY waiting.place

-- Contract: everything that a dispatcher reads before a turn, in one statement. How many jobs of a pool are with
-- workers; at most `:most` tenants with waiting jobs, from `:after` on, then from the beginning; and the first jobs of
-- each. Of each tenant it returns its share of the free slots (`:capacity`, at most `:batch`) plus `:beside` plus one
-- job, or only the first job if there are more tenants than slots. One row without a tenant: no job waits, or no slot
-- is free. Goes from tenant to tenant through the index, so it costs the same for two waiting jobs of a tenant and for
-- a million.
WITH RECURSIVE later (tenant, place) AS (
    SELECT * FROM (
        SELECT tenant, 1 FROM plane_job
        WHERE pool = :pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' AND tenant > :after
        ORDER BY tenant LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT next.tenant FROM plane_job AS next
        WHERE next.pool = :pool AND next.state IN ('PENDING', 'RETRYING') AND next.queue = 'pool'
            AND next.tenant > later.tenant
        ORDER BY next.tenant LIMIT 1
    ), later.place + 1
    FROM later WHERE later.tenant IS NOT NULL AND later.place < :most
), earlier (tenant, place) AS (
    SELECT * FROM (
        SELECT tenant, 1 FROM plane_job
        WHERE pool = :pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' AND tenant <= :after
        ORDER BY tenant LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT next.tenant FROM plane_job AS next
        WHERE next.pool = :pool AND next.state IN ('PENDING', 'RETRYING') AND next.queue = 'pool'
            AND next.tenant > earlier.tenant AND next.tenant <= :after
        ORDER BY next.tenant LIMIT 1
    ), earlier.place + 1
    FROM earlier WHERE earlier.tenant IS NOT NULL AND earlier.place < :most
), waiting AS (
    SELECT tenant FROM later WHERE tenant IS NOT NULL
    UNION ALL
    SELECT tenant FROM earlier WHERE tenant IS NOT NULL
    LIMIT :most
), room AS (
    SELECT COALESCE((SELECT running FROM plane_pool WHERE pool = :pool), 0) AS running
), share AS (
    SELECT waiting.tenant, count(*) OVER () AS tenants,
        (LEAST(:capacity - room.running, :batch) + count(*) OVER () - 1) / count(*) OVER () + :beside AS depth
    FROM room CROSS JOIN waiting WHERE room.running < :capacity
)
SELECT room.running AS in_pool, share.tenant, COALESCE(plane_tenant.running, 0) AS running, plane_tenant.slots,
    share.depth, ARRAY(
        SELECT job.id FROM plane_job AS job
        WHERE job.pool = :pool AND job.state IN ('PENDING', 'RETRYING') AND job.queue = 'pool'
            AND job.tenant = share.tenant
        ORDER BY job.priority DESC, job.created_ns, job.id
        LIMIT CASE WHEN share.depth = 1 AND share.tenants > 1 THEN 1 ELSE share.depth + 1 END
    ) AS jobs
FROM room LEFT JOIN share ON TRUE LEFT JOIN plane_tenant ON plane_tenant.tenant = share.tenant

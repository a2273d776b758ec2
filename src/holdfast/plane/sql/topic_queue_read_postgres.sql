-- Contract: for some topics, given by a JSON array of objects: at most `:tenants` tenants with jobs in the queue of the
-- topic, from `after` on, then from the beginning, and the first `most` jobs of each, one row for each job. One
-- statement, because each costs a round trip; the result is that of `topic_queue_tenants` and `topic_queue_jobs`.
SELECT wanted.topic, line.tenant, COALESCE(plane_tenant.running, 0) AS running, plane_tenant.slots,
    job.id, job.priority, job.created_ns
FROM json_to_recordset(CAST(:wanted AS json)) AS wanted (topic TEXT, after TEXT, most BIGINT)
CROSS JOIN LATERAL (
    WITH RECURSIVE later (tenant, place) AS (
        SELECT * FROM (
            SELECT tenant, 1 FROM plane_job
            WHERE pool = :pool AND topic = wanted.topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic'
                AND tenant > wanted.after
            ORDER BY tenant LIMIT 1
        ) AS first
        UNION ALL
        SELECT (
            SELECT next.tenant FROM plane_job AS next
            WHERE next.pool = :pool AND next.topic = wanted.topic AND next.state IN ('PENDING', 'RETRYING')
                AND next.queue = 'topic' AND next.tenant > later.tenant
            ORDER BY next.tenant LIMIT 1
        ), later.place + 1
        FROM later WHERE later.tenant IS NOT NULL AND later.place < :tenants
    ), earlier (tenant, place) AS (
        SELECT * FROM (
            SELECT tenant, 1 FROM plane_job
            WHERE pool = :pool AND topic = wanted.topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic'
                AND tenant <= wanted.after
            ORDER BY tenant LIMIT 1
        ) AS first
        UNION ALL
        SELECT (
            SELECT next.tenant FROM plane_job AS next
            WHERE next.pool = :pool AND next.topic = wanted.topic AND next.state IN ('PENDING', 'RETRYING')
                AND next.queue = 'topic' AND next.tenant > earlier.tenant AND next.tenant <= wanted.after
            ORDER BY next.tenant LIMIT 1
        ), earlier.place + 1
        FROM earlier WHERE earlier.tenant IS NOT NULL AND earlier.place < :tenants
    )
    SELECT tenant, 0 AS turn, place FROM later WHERE tenant IS NOT NULL
    UNION ALL
    SELECT tenant, 1 AS turn, place FROM earlier WHERE tenant IS NOT NULL
    ORDER BY turn, place LIMIT :tenants
) AS line
CROSS JOIN LATERAL (
    SELECT id, priority, created_ns FROM plane_job
    WHERE pool = :pool AND topic = wanted.topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic'
        AND tenant = line.tenant
    ORDER BY priority DESC, created_ns, id LIMIT wanted.most
) AS job
LEFT JOIN plane_tenant ON plane_tenant.tenant = line.tenant
ORDER BY wanted.topic, line.turn, line.place, job.priority DESC, job.created_ns, job.id

-- Contract: how many jobs of each tenant are in each state; those that ended since `:since_ns` by when they did, as a
-- number of spans of `:span_ns` since 1970, all others under -1. Reads every job, in the order in which they lie: the
-- text that is appended to the tenant keeps SQLite from going through an index of tenants, row by row.
SELECT tenant || '' AS tenant, state,
    CASE WHEN updated_ns >= :since_ns
        AND state NOT IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    THEN updated_ns / :span_ns ELSE -1 END AS span,
    COUNT(*) AS jobs
FROM plane_job GROUP BY 1, 2, 3

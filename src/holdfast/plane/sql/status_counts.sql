-- Contract: how many jobs of each tenant are in each state; jobs that ended since `:since_ns` by their time of end, in
-- spans of `:span_ns` since 1970, all others under -1. Reads every job in physical order: the text that is appended to
-- the tenant keeps SQLite from an index of tenants. `again` is 1 for a failed attempt of a workflow step that allows
-- more attempts.
SELECT tenant || '' AS tenant, state,
    CASE WHEN updated_ns >= :since_ns
        AND state NOT IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    THEN updated_ns / :span_ns ELSE -1 END AS span,
    CASE WHEN state NOT IN ('FAILED', 'TIMEOUT') OR REPLACE(labels, '"holdfast.attempts":', '') = labels
            OR COALESCE(code, '') IN ('fatal', 'unknown_topic', 'refused')
        THEN 0
        WHEN REPLACE(labels, '"holdfast.attempts":"' || SUBSTR(id, LENGTH(RTRIM(id, '0123456789')) + 1) || '"', '') = labels
        THEN 1 ELSE 0 END AS again,
    COUNT(*) AS jobs
FROM plane_job GROUP BY 1, 2, 3, 4

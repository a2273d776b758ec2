-- Contract: removes the links from parents to the jobs between two places that ended before `:before_ns`.
DELETE FROM plane_child WHERE child IN (
    SELECT id FROM plane_job
    WHERE (created_ns, id) > (:created_ns, :id) AND (created_ns, id) <= (:last_ns, :last_id)
        AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
        AND updated_ns < :before_ns
)

-- Contract: jobs of one tenant, as outlines, newest first, after a cursor (`:created_ns`, `:id`).
-- The tenant is bounded from both sides, as the topic in `job_list_topic` is.
SELECT {outline}
FROM plane_job
WHERE tenant >= :tenant AND (tenant, created_ns, id) < (:tenant, :created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY tenant DESC, created_ns DESC, id DESC LIMIT :most

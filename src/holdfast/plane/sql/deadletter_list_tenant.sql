-- Contract: dead letters of one tenant, without their bodies, newest first, after a cursor (`:at_ns`, `:id`).
-- The tenant is bounded from both sides, as the topic in `job_list_topic` is.
SELECT id, job, tenant, topic, reason, code, last_state, attempts, at_ns, retried_as
FROM plane_dead_letter WHERE tenant >= :tenant AND (tenant, at_ns, id) < (:tenant, :at_ns, :id)
ORDER BY tenant DESC, at_ns DESC, id DESC LIMIT :most

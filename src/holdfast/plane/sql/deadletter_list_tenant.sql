-- Contract: dead letters of one tenant, without their bodies, newest first, after a place (`:at_ns`, `:id`) in that order.
SELECT id, job, tenant, topic, reason, code, last_state, attempts, at_ns, retried_as
FROM plane_dead_letter WHERE tenant = :tenant AND (at_ns, id) < (:at_ns, :id)
ORDER BY at_ns DESC, id DESC LIMIT :most

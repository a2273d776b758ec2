-- Contract: dead letters of all tenants, without their bodies, newest first, after a cursor (`:at_ns`, `:id`).
SELECT id, job, tenant, topic, reason, code, last_state, attempts, at_ns, retried_as
FROM plane_dead_letter WHERE (at_ns, id) < (:at_ns, :id) ORDER BY at_ns DESC, id DESC LIMIT :most

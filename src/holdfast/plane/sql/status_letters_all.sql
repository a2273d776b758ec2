-- Contract: the newest dead letters of all tenants, without their bodies.
SELECT id, job, tenant, topic, reason, code, attempts, at_ns, retried_as
FROM plane_dead_letter ORDER BY at_ns DESC, id DESC LIMIT :most

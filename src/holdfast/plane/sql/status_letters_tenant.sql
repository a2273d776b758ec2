-- Contract: the newest dead letters of one tenant, without their bodies.
SELECT id, job, tenant, topic, reason, code, attempts, at_ns, retried_as
FROM plane_dead_letter WHERE tenant = :tenant ORDER BY at_ns DESC, id DESC LIMIT :most

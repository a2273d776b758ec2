-- Contract: the newest dead letters since a time that were not tried again, without their bodies.
SELECT id, job, tenant, topic, reason, code, attempts, at_ns FROM plane_dead_letter
WHERE at_ns >= :since_ns AND retried_as IS NULL ORDER BY at_ns DESC, id DESC LIMIT :most

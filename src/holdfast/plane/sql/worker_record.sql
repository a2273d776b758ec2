-- Contract: stores the heartbeat of a worker. An older one does not replace a newer one.
INSERT INTO plane_worker (worker, pool, topics, capacity, active, at_ns, draining, host, pid, places, by_topic)
VALUES (:worker, :pool, :topics, :capacity, :active, :at_ns, :draining, :host, :pid, :places, :by_topic)
ON CONFLICT (worker) DO UPDATE SET
    pool = excluded.pool, topics = excluded.topics, capacity = excluded.capacity, active = excluded.active,
    at_ns = excluded.at_ns, draining = excluded.draining, host = excluded.host, pid = excluded.pid,
    places = excluded.places, by_topic = excluded.by_topic
WHERE plane_worker.at_ns <= excluded.at_ns
RETURNING worker

-- Contract: deletes workers without a heartbeat since a time.
DELETE FROM plane_worker WHERE at_ns < :before_ns RETURNING worker

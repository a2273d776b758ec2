-- Contract: one worker.
SELECT * FROM plane_worker WHERE worker = :worker

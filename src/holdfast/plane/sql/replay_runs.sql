-- Contract: how often an attempt of a job was begun, as far as the scheduler has heard of it.
SELECT COUNT(*) AS number FROM plane_event WHERE job = :job AND after = 'RUNNING' AND attempt = :attempt

-- Contract: the number of runs in each status that is not terminal. Uses only the indexes of such runs.
SELECT status, COUNT(*) AS runs FROM plane_run WHERE status IN ('pending', 'running') GROUP BY status
UNION ALL
SELECT status, COUNT(*) AS runs FROM plane_run WHERE status = 'waiting' GROUP BY status

-- Contract: how many runs are in each status that is not terminal. Goes through the indexes of such runs alone.
SELECT status, COUNT(*) AS runs FROM plane_run WHERE status IN ('pending', 'running') GROUP BY status
UNION ALL
SELECT status, COUNT(*) AS runs FROM plane_run WHERE status = 'waiting' GROUP BY status

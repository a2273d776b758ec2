-- Contract: how many runs are in each status, those that are over left out.
SELECT status, COUNT(*) AS runs FROM plane_run WHERE status IN ('pending', 'running', 'waiting') GROUP BY status

-- Contract: how many unfinished runs a tenant has, counted up to `most`. Goes through the index of such runs alone.
SELECT COUNT(*) AS runs FROM (
    SELECT 1 AS one FROM plane_run
    WHERE tenant = :tenant AND status IN ('pending', 'running', 'waiting')
    LIMIT :most
) AS found

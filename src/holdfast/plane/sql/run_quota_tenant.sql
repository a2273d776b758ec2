-- Contract: the number of unfinished runs of a tenant, counted up to `most`. Uses only the index of such runs.
SELECT COUNT(*) AS runs FROM (
    SELECT 1 AS one FROM plane_run
    WHERE tenant = :tenant AND status IN ('pending', 'running', 'waiting')
    LIMIT :most
) AS found

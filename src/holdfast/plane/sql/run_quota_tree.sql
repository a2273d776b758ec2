-- Contract: the number of runs that a run has started, directly and through others, counted up to `most`. Uses only an index.
SELECT COUNT(*) AS runs FROM (SELECT 1 AS one FROM plane_run WHERE root = :root LIMIT :most) AS found

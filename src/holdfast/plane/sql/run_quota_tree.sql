-- Contract: how many runs a run has started, directly and through others, counted up to `most`. Goes through an index alone.
SELECT COUNT(*) AS runs FROM (SELECT 1 AS one FROM plane_run WHERE root = :root LIMIT :most) AS found

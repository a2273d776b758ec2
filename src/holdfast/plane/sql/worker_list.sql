-- Contract: every worker that is remembered.
SELECT * FROM plane_worker ORDER BY worker

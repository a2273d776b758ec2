-- Contract: every pool that has had a job with its workers, and how many it has now.
SELECT pool, running FROM plane_pool ORDER BY pool

-- Contract: how many jobs of each pool are with workers.
SELECT pool, running FROM plane_pool ORDER BY pool

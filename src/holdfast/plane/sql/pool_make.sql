-- Contract: makes the row of a pool, if it has none.
INSERT INTO plane_pool (pool, running) VALUES (:pool, 0) ON CONFLICT (pool) DO NOTHING

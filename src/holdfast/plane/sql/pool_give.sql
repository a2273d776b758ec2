-- Contract: gives one of a pool's places back.
UPDATE plane_pool SET running = running - 1 WHERE pool = :pool

-- Contract: takes slots of a pool (below zero: frees them). The row is locked by this transaction.
UPDATE plane_pool SET running = running + :shift WHERE pool = :name

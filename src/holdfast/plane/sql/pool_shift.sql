-- Contract: takes (or, below zero, gives back) some of a pool's places. The row is held by this transaction.
UPDATE plane_pool SET running = running + :shift WHERE pool = :name

-- Contract: the key behind which the next sweep begins, left by the one before; no row: there was none.
SELECT value FROM holdfast_meta WHERE name = 'swept'

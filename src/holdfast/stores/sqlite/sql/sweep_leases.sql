-- Contract: removes those leases with a key behind `:after`, up to `:last`, that expired: on our clock, or, when they
-- are on another, by the wall clock. The fence of the file stays where it is, so nothing is forgotten that matters.
DELETE FROM holdfast_lease
WHERE key > :after AND key <= :last
  AND CASE WHEN clock = :clock THEN expires_ns <= :now_ns ELSE expires_wall_ns <= :wall_ns END

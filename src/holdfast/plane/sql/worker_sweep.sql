-- Contract: forgets the workers that have said nothing since a time.
DELETE FROM plane_worker WHERE at_ns < :before_ns RETURNING worker

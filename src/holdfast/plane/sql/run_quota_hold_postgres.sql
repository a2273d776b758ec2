-- Contract: until the transaction ends, no other one counts the runs of this tree. The number is of no other use in the plane.
SELECT pg_advisory_xact_lock(hashtextextended(:root, 1)) IS NULL AS held

-- Contract: prevents other transactions from counting the runs of this tree until this one ends. The lock number has no other
-- use in the plane.
SELECT pg_advisory_xact_lock(hashtextextended(:root, 1)) IS NULL AS held

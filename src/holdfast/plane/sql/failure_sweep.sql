-- Contract: deletes the counts of messages that have not failed for a long time.
DELETE FROM plane_failure WHERE at_ns < :before_ns

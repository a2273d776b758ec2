-- Contract: forgets messages that have not failed for long.
DELETE FROM plane_failure WHERE at_ns < :before_ns

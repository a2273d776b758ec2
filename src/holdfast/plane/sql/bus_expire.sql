-- Contract: forgets messages of subjects that begin with `low` (and sort below `high`), if no consumer has taken them and they
-- were published before `before_ns`: for subjects whose messages mean nothing any more by then.
DELETE FROM plane_message
WHERE subject >= :low AND subject < :high AND state = 0 AND first_ns < :before_ns

-- Contract: deletes unclaimed messages of subjects from `low` up to `high` that were published before `before_ns`: for
-- subjects whose messages have no meaning after that time.
DELETE FROM plane_message
WHERE subject >= :low AND subject < :high AND state = 0 AND first_ns < :before_ns

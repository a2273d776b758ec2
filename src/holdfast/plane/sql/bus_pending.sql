-- Contract: how many messages of a queue are not done.
SELECT (SELECT COUNT(*) FROM plane_message WHERE subject = :subject AND recipient = :recipient AND state = 0)
     + (SELECT COUNT(*) FROM plane_message WHERE subject = :subject AND recipient = :recipient AND state = 1) AS number

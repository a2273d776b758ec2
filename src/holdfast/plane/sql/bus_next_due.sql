-- Contract: when the next message of a queue becomes due; NULL: none will.
SELECT MIN(due_ns) AS due_ns FROM plane_message WHERE subject = :subject AND recipient = :recipient AND state = 1

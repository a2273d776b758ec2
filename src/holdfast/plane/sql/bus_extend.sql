-- Contract: a claimed message is still being worked on: no other consumer gets it until `due_ns`. Also if its time was over
-- already, as long as no consumer has claimed it since.
UPDATE plane_message SET state = 1, due_ns = :due_ns
WHERE id = :id AND recipient = :recipient AND deliveries = :deliveries AND state <> 2

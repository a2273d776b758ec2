-- Contract: extends the claim of a message until `due_ns`. Also works after the claim has ended, unless another
-- consumer has claimed the message since.
UPDATE plane_message SET state = 1, due_ns = :due_ns
WHERE id = :id AND recipient = :recipient AND deliveries = :deliveries AND state <> 2

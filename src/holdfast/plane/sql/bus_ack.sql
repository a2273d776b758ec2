-- Contract: a message was handled under this claim: it is done. Kept without its body until `due_ns`. A claim that was lost
-- meanwhile changes nothing.
UPDATE plane_message SET state = 2, due_ns = :due_ns, body = ''
WHERE id = :id AND recipient = :recipient AND deliveries = :deliveries AND state <> 2

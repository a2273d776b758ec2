-- Contract: nacks a claimed message: it is delivered again after `due_ns`. Does nothing if the claim was lost.
UPDATE plane_message
SET state = :state, due_ns = :due_ns, failures = failures + :failed, excused = excused + :excused
WHERE id = :id AND recipient = :recipient AND deliveries = :deliveries AND state <> 2

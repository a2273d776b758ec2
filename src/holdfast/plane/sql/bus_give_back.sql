-- Contract: a message that was claimed is to be delivered again, when `due_ns` is over. A claim that was lost meanwhile
-- changes nothing.
UPDATE plane_message
SET state = :state, due_ns = :due_ns, failures = failures + :failed, excused = excused + :excused
WHERE id = :id AND recipient = :recipient AND deliveries = :deliveries AND state <> 2

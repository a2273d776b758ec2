-- Contract: notes that a job submits a child. What was noted before does not change.
INSERT INTO plane_child (parent, made_ns, child, detached, at_ns)
VALUES (:parent, :made_ns, :child, :detached, :at_ns)
ON CONFLICT (parent, made_ns, child) DO NOTHING

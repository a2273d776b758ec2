-- Contract: records a decision. No row: it was decided before, or has changed since it was read.
UPDATE plane_approval SET
    status = :status, revision = revision + 1, snapshot = :snapshot, decided_by = :decided_by, decided_ns = :now_ns,
    note = :note, holdfast_fence = :fence
WHERE job = :job AND tenant = :tenant AND status = 'waiting' AND revision = :revision
RETURNING *

-- Contract: writes a decision; no row: it was decided already, or is not what was looked at.
UPDATE plane_approval SET
    status = :status, revision = revision + 1, snapshot = :snapshot, decided_by = :decided_by, decided_ns = :now_ns,
    note = :note, holdfast_fence = :fence
WHERE job = :job AND tenant = :tenant AND status = 'waiting' AND revision = :revision
RETURNING *

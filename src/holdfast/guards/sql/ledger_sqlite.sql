-- Contract: makes the fence ledger, if it is not there yet. One row for each resource that has met a fence and cannot
-- carry it itself: rows that were deleted or do not exist yet (`place` is the table, `resource` the id as text), and
-- what the HTTP and message guards have seen. `fence` only ever rises.
CREATE TABLE IF NOT EXISTS holdfast_guard_fence (
    place    TEXT NOT NULL,
    resource TEXT NOT NULL,
    fence    INTEGER NOT NULL CHECK (typeof(fence) = 'integer' AND fence >= 0),
    seen_at  TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (place, resource)
) WITHOUT ROWID

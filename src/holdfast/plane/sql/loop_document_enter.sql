-- Contract: registers a fence at a document and reads it, in one step. A missing document is created with the given
-- body. No row: a newer fence is stored.
INSERT INTO plane_document (name, body, writer, at_ns, holdfast_fence) VALUES (:name, :body, :writer, :at_ns, :fence)
ON CONFLICT (name) DO UPDATE SET holdfast_fence = excluded.holdfast_fence
WHERE plane_document.holdfast_fence IS NULL OR plane_document.holdfast_fence <= excluded.holdfast_fence
RETURNING name, body, writer, at_ns, holdfast_fence

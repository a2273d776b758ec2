-- Contract: registers a fence with a document and reads it, in one step; one that is not there is made, with the body
-- given; no row: a newer fence was here.
INSERT INTO plane_document (name, body, writer, at_ns, holdfast_fence) VALUES (:name, :body, :writer, :at_ns, :fence)
ON CONFLICT (name) DO UPDATE SET holdfast_fence = excluded.holdfast_fence
WHERE plane_document.holdfast_fence IS NULL OR plane_document.holdfast_fence <= excluded.holdfast_fence
RETURNING name, body, writer, at_ns, holdfast_fence

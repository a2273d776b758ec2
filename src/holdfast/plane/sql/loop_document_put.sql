-- Contract: replaces a document, whatever was in it; no row: a newer fence was here.
INSERT INTO plane_document (name, body, writer, at_ns, holdfast_fence) VALUES (:name, :body, :writer, :at_ns, :fence)
ON CONFLICT (name) DO UPDATE SET
    body = excluded.body, writer = excluded.writer, at_ns = excluded.at_ns, holdfast_fence = excluded.holdfast_fence
WHERE plane_document.holdfast_fence IS NULL OR plane_document.holdfast_fence <= excluded.holdfast_fence
RETURNING name

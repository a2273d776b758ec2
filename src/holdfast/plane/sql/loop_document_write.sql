-- Contract: writes a document that was entered under exactly this fence; no row: it does not carry it any more.
UPDATE plane_document SET body = :body, writer = :writer, at_ns = :at_ns
WHERE name = :name AND holdfast_fence = :fence
RETURNING name

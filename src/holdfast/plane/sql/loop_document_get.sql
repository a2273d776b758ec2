-- Contract: one document.
SELECT name, body, writer, at_ns, holdfast_fence FROM plane_document WHERE name = :name

-- Contract: keeps a definition as the next version; no row: somebody was quicker with that version.
INSERT INTO plane_workflow (scope, name, version, digest, body, outline, created_ns, created_by)
VALUES (:scope, :name, :version, :digest, :body, :outline, :now_ns, :created_by)
ON CONFLICT DO NOTHING
RETURNING *

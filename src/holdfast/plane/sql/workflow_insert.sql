-- Contract: inserts a definition as the next version. No row: another process was faster with that version.
INSERT INTO plane_workflow (scope, name, version, digest, body, outline, created_ns, created_by)
VALUES (:scope, :name, :version, :digest, :body, :outline, :now_ns, :created_by)
ON CONFLICT DO NOTHING
RETURNING *

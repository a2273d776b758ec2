-- Contract: one version of a definition.
SELECT * FROM plane_workflow WHERE scope = :scope AND name = :name AND version = :version

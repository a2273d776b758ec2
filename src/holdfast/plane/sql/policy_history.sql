-- Contract: changes that are older than a revision, newest first; of one risk class, or of all where none is given.
SELECT revision, risk, before, after, actor, reason, source, at_ns
FROM plane_policy_history
WHERE revision < :below AND (CAST(:risk AS TEXT) IS NULL OR risk = :risk)
ORDER BY revision DESC
LIMIT :limit

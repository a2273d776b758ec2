-- Contract: changes that are older than a revision, newest first; of one risk class or setting, or of all if no name is
-- given.
SELECT revision, risk, before, after, actor, reason, source, at_ns
FROM plane_policy_history
WHERE revision < :below AND (CAST(:risk AS TEXT) IS NULL OR risk = :risk)
UNION ALL
SELECT revision, name AS risk, before, after, actor, reason, source, at_ns
FROM plane_policy_setting
WHERE revision < :below AND (CAST(:risk AS TEXT) IS NULL OR name = :risk)
ORDER BY revision DESC
LIMIT :limit

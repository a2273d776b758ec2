-- Contract: the newest exercises, running or ended, newest first.
SELECT revision, family, parts, risk, forced, since_ns, until_ns, actor, reason, ended_by
FROM plane_policy_exercise
ORDER BY revision DESC
LIMIT :limit

-- Contract: the running exercises, by family.
SELECT revision, family, parts, risk, forced, since_ns, until_ns, actor, reason, ended_by
FROM plane_policy_exercise
WHERE until_ns > :now_ns
ORDER BY family, revision

-- Contract: the value of one setting and who switched it, if it was ever switched. The columns are those of
-- `policy_get`.
SELECT name AS risk, after AS mode, revision, at_ns AS since_ns, actor, reason, source
FROM plane_policy_setting
WHERE name = :risk
ORDER BY revision DESC
LIMIT 1

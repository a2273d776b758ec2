-- Contract: starts an exercise. An earlier one of the same family was ended.
INSERT INTO plane_policy_exercise (revision, family, parts, risk, forced, since_ns, until_ns, actor, reason, ended_by)
VALUES (:revision, :family, :parts, :risk, :forced, :since_ns, :until_ns, :actor, :reason, NULL)

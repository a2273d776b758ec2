-- Contract: the mode of one risk class, if it was set.
SELECT risk, mode, revision, since_ns, actor, reason, source FROM plane_policy WHERE risk = :risk

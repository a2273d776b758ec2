-- Contract: the mode of every risk class, by name.
SELECT risk, mode, revision, since_ns, actor, reason, source FROM plane_policy ORDER BY risk

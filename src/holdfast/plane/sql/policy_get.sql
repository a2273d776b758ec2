-- Contract: what one risk class does, if anybody has said so.
SELECT risk, mode, revision, since_ns, actor, reason, source FROM plane_policy WHERE risk = :risk

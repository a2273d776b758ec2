-- Contract: sets the mode of a risk class.
INSERT INTO plane_policy (risk, mode, revision, since_ns, actor, reason, source)
VALUES (:risk, :mode, :revision, :at_ns, :actor, :reason, :source)
ON CONFLICT (risk) DO UPDATE SET mode = excluded.mode, revision = excluded.revision, since_ns = excluded.since_ns,
    actor = excluded.actor, reason = excluded.reason, source = excluded.source

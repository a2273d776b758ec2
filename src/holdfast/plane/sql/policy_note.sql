-- Contract: inserts one entry of the history.
INSERT INTO plane_policy_history (revision, risk, before, after, actor, reason, source, at_ns)
VALUES (:revision, :risk, :before, :mode, :actor, :reason, :source, :at_ns)

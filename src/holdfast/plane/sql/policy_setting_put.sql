-- Contract: switches a setting.
INSERT INTO plane_policy_setting (revision, name, before, after, actor, reason, source, at_ns)
VALUES (:revision, :risk, :before, :mode, :actor, :reason, :source, :at_ns)

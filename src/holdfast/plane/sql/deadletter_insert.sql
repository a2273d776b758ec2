-- Contract: keeps a dead letter. The same one again changes nothing.
INSERT INTO plane_dead_letter (id, job, tenant, topic, reason, code, last_state, attempts, at_ns, body)
VALUES (:id, :job, :tenant, :topic, :reason, :code, :last_state, :attempts, :at_ns, :body)
ON CONFLICT (id) DO NOTHING

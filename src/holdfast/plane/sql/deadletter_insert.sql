-- Contract: keeps a dead letter. The same one again changes nothing. That of an earlier job of this id of the tenant gives way to
-- it, and has then not been tried again; those of other tenants stay. `:made_ns`: when the job was made; 0: it is a message's.
INSERT INTO plane_dead_letter (id, job, tenant, topic, reason, code, last_state, attempts, at_ns, made_ns, body)
VALUES (:id, :job, :tenant, :topic, :reason, :code, :last_state, :attempts, :at_ns, :made_ns, :body)
ON CONFLICT (id, tenant) DO UPDATE SET
    job = excluded.job, topic = excluded.topic, reason = excluded.reason, code = excluded.code,
    last_state = excluded.last_state, attempts = excluded.attempts, at_ns = excluded.at_ns, made_ns = excluded.made_ns,
    body = excluded.body, retried_as = NULL
WHERE plane_dead_letter.made_ns <> excluded.made_ns

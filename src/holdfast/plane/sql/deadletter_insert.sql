-- Contract: stores a dead letter. Repeating it changes nothing. It replaces the dead letter of an earlier job with this
-- id of the same tenant, and has then not been retried. `:made_ns`: when the job was created; 0: it is the dead letter
-- of a message.
INSERT INTO plane_dead_letter (id, job, tenant, topic, reason, code, last_state, attempts, at_ns, made_ns, body)
VALUES (:id, :job, :tenant, :topic, :reason, :code, :last_state, :attempts, :at_ns, :made_ns, :body)
ON CONFLICT (id, tenant) DO UPDATE SET
    job = excluded.job, topic = excluded.topic, reason = excluded.reason, code = excluded.code,
    last_state = excluded.last_state, attempts = excluded.attempts, at_ns = excluded.at_ns, made_ns = excluded.made_ns,
    body = excluded.body, retried_as = NULL
WHERE plane_dead_letter.made_ns <> excluded.made_ns

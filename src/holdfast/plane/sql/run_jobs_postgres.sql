-- Contract: of the jobs that a JSON list names, how they are and since when; a label says whose content was
-- forgotten.
SELECT id, tenant, idempotency_key, state, result, reason, code, labels, updated_ns FROM plane_job
WHERE id IN (SELECT value FROM json_array_elements_text(CAST(:ids AS json)))

-- Contract: the state and time of the last change of the jobs in a JSON list; a label marks those whose content was deleted.
SELECT id, tenant, idempotency_key, state, result, reason, code, labels, updated_ns FROM plane_job
WHERE id IN (SELECT value FROM json_array_elements_text(CAST(:ids AS json)))

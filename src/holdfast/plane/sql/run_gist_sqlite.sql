-- Contract: of the runs that a JSON list names, what their outlines have of their documents, which stay where they are: `told`
-- is a list of the error, the end, the deadline and the run whose step it is; `steps` says how each of them is, in order.
SELECT id, json_extract(document, '$.error', '$.ended_ns', '$.deadline_ns', '$.parent[0]') AS told,
    (SELECT json_group_object(key, json_extract(value, '$.status')) FROM json_each(document, '$.steps')) AS steps
FROM plane_run WHERE id IN (SELECT value FROM json_each(:ids))

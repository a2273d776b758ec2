-- Contract: the outlines of the runs in a JSON list, extracted from their documents by the database: for runs whose last writer
-- stored none. `told` is a list of the error, the end, the deadline and the parent run; `steps` has the status of each step,
-- in order.
SELECT id, json_extract(document, '$.error', '$.ended_ns', '$.deadline_ns', '$.parent[0]') AS told,
    (SELECT json_group_object(key, json_extract(value, '$.status')) FROM json_each(document, '$.steps')) AS steps
FROM plane_run WHERE id IN (SELECT value FROM json_each(:ids))

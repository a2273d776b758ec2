-- Contract: the outlines of the runs that a JSON list names, made from their documents, which stay where they are: for runs whose
-- last writer kept none. `told` is a list of the error, the end, the deadline and the run whose step it is; `steps` says how each of
-- them is, in order.
SELECT id, json_extract(document, '$.error', '$.ended_ns', '$.deadline_ns', '$.parent[0]') AS told,
    (SELECT json_group_object(key, json_extract(value, '$.status')) FROM json_each(document, '$.steps')) AS steps
FROM plane_run WHERE id IN (SELECT value FROM json_each(:ids))

-- Contract: the outlines of the runs in a JSON list, extracted from their documents by the database: for runs whose last writer
-- stored none. `told` is a list of the error, the end, the deadline and the parent run; `steps` has the status of each step,
-- in order.
SELECT id, CAST(json_build_array(
        CAST(document AS json) -> 'error', CAST(document AS json) -> 'ended_ns', CAST(document AS json) -> 'deadline_ns',
        CAST(document AS json) -> 'parent' -> 0
    ) AS text) AS told,
    (SELECT CAST(json_object_agg(key, value -> 'status') AS text) FROM json_each(CAST(document AS json) -> 'steps')) AS steps
FROM plane_run WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))

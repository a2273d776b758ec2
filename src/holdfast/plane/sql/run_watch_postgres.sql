-- Contract: status and version of some runs, named by a JSON array of ids.
SELECT id, tenant, status AS state, version, NULL AS progress_ns FROM plane_run
WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))

-- Contract: some jobs, named by a JSON array of ids.
SELECT * FROM plane_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))

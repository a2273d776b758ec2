-- Contract: where some jobs, named by a JSON array of ids, stand in the lines of their tenants.
SELECT id, priority, created_ns FROM plane_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))

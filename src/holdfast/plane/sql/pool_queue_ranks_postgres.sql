-- Contract: the positions of some jobs, named by a JSON array of ids, in the queues of their tenants.
SELECT id, priority, created_ns FROM plane_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))

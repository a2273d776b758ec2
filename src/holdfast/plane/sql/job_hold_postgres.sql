-- Contract: some jobs, named by a JSON array of ids, locked in the order of their ids until the transaction ends, so that
-- two that want some of the same wait for each other and never deadlock.
SELECT * FROM plane_job WHERE id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))
ORDER BY id FOR UPDATE

-- Contract: the first jobs of a topic after an id, at most `:most`, in the queue of the topic in a pool that is not in
-- a JSON array.
SELECT id FROM plane_job
WHERE topic = :topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic' AND id > :after
    AND pool NOT IN (SELECT value FROM json_each(:pools))
ORDER BY id LIMIT :most

-- Contract: how many jobs wait in the queue of each topic. Reads the index of these queues once.
SELECT pool, topic, COUNT(*) AS jobs FROM plane_job WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic'
GROUP BY pool, topic

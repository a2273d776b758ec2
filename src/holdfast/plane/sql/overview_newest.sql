-- Contract: the newest jobs of a topic that were made before a time: their state, and when they were last dispatched and changed.
SELECT job.state, job.updated_ns, (
    SELECT MAX(event.at_ns) FROM plane_event AS event WHERE event.job = job.id AND event.after = 'DISPATCHED'
) AS began_ns
FROM plane_job AS job WHERE job.topic >= :topic AND job.topic <= :topic AND job.created_ns < :before_ns
ORDER BY job.topic DESC, job.created_ns DESC, job.id DESC LIMIT :most

-- Contract: leads the tables of the plane's state from version 4 to 5: workers take from queues of their topics, and jobs of topics
-- that no worker serves are found by topic. A worker of an older version goes on, with the shared queue of its pool. Run once, in one
-- transaction.

ALTER TABLE plane_worker ADD COLUMN by_topic BIGINT NOT NULL DEFAULT 0;

CREATE INDEX plane_job_unserved ON plane_job (topic, id)
    WHERE state IN ('PENDING', 'RETRYING') AND not_before_ns < 0;

-- Contract: migrates the tables of the plane's state from version 4 to 5: workers consume queues of their topics, and
-- jobs of topics without workers are found by topic. Older workers continue with the shared queue of their pool. Run
-- once, in one transaction.

ALTER TABLE plane_worker ADD COLUMN by_topic BIGINT NOT NULL DEFAULT 0;

CREATE INDEX plane_job_unserved ON plane_job (topic, id)
    WHERE state IN ('PENDING', 'RETRYING') AND not_before_ns < 0;

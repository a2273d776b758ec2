-- Contract: migrates the tables of the plane's state from version 3 to 4: reported progress is stored, and lists of
-- failed jobs, or of one topic, use an index. Older workers store no progress. Run once, in one transaction.

CREATE TABLE plane_progress (
    job      TEXT NOT NULL PRIMARY KEY,
    made_ns  BIGINT NOT NULL,
    attempt  BIGINT NOT NULL,
    fence    BIGINT NOT NULL,
    at_ns    BIGINT NOT NULL,
    fraction DOUBLE PRECISION,
    note     TEXT
);

CREATE INDEX plane_job_failed ON plane_job (state, created_ns, id)
    WHERE state IN ('FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED');
CREATE INDEX plane_job_topic ON plane_job (topic, created_ns, id);

-- Contract: migrates the tables of the plane's state from version 1 to 2: each tenant has its own dead letters, and
-- each dead letter stores which job it belongs to. A dead letter without a job belongs to none of the stored ones. Run
-- once, in one transaction.

CREATE TABLE plane_dead_letter_2 (
    id         TEXT NOT NULL,
    job        TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    topic      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    code       TEXT NOT NULL,
    last_state TEXT,
    attempts   BIGINT NOT NULL,
    at_ns      BIGINT NOT NULL,
    made_ns    BIGINT NOT NULL,
    body       TEXT NOT NULL,
    retried_as TEXT,
    PRIMARY KEY (id, tenant)
);

-- A dead letter has the time of its job's last change.
INSERT INTO plane_dead_letter_2
SELECT kept.id, kept.job, kept.tenant, kept.topic, kept.reason, kept.code, kept.last_state, kept.attempts, kept.at_ns,
    COALESCE((
        SELECT job.created_ns FROM plane_job AS job
        WHERE job.id = kept.id AND job.tenant = kept.tenant AND job.updated_ns = kept.at_ns
    ), 0),
    kept.body, kept.retried_as
FROM plane_dead_letter AS kept;

DROP TABLE plane_dead_letter;
ALTER TABLE plane_dead_letter_2 RENAME TO plane_dead_letter;
CREATE INDEX plane_dead_letter_recent ON plane_dead_letter (tenant, at_ns, id);
CREATE INDEX plane_dead_letter_age ON plane_dead_letter (at_ns, id);

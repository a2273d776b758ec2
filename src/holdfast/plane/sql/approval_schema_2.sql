-- Contract: migrates the approval table from version 1 to 2: one approval per job id and tenant. Run once, in one
-- transaction.

CREATE TABLE plane_approval_2 (
    job            TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    gate           BIGINT NOT NULL,
    status         TEXT NOT NULL,
    risk           TEXT NOT NULL,
    rule           TEXT NOT NULL,
    message        TEXT NOT NULL,
    request        TEXT NOT NULL,
    snapshot       TEXT NOT NULL,
    requested_by   TEXT NOT NULL,
    revision       BIGINT NOT NULL,
    created_ns     BIGINT NOT NULL,
    run            TEXT,
    step           TEXT,
    expires_ns     BIGINT,
    decided_by     TEXT,
    decided_ns     BIGINT,
    note           TEXT,
    holdfast_fence BIGINT,
    PRIMARY KEY (job, tenant)
);

INSERT INTO plane_approval_2 (
    job, tenant, gate, status, risk, rule, message, request, snapshot, requested_by, revision, created_ns,
    run, step, expires_ns, decided_by, decided_ns, note, holdfast_fence
)
SELECT
    job, tenant, gate, status, risk, rule, message, request, snapshot, requested_by, revision, created_ns,
    run, step, expires_ns, decided_by, decided_ns, note, holdfast_fence
FROM plane_approval;

DROP TABLE plane_approval;
ALTER TABLE plane_approval_2 RENAME TO plane_approval;
CREATE INDEX plane_approval_run ON plane_approval (run) WHERE run IS NOT NULL;
CREATE INDEX plane_approval_recent ON plane_approval (tenant, created_ns, job);
CREATE INDEX plane_approval_newest ON plane_approval (created_ns, job);

-- Contract: makes the table of what waits, or waited, for a person. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds; `message` is JSON text. Whether something still waits is said by its
-- job, which may have been cancelled or have run out of time; what waits now is found by the jobs that do. `revision` rises
-- with every decision. What is kept outlives the job, whose id somebody else may use meanwhile: each tenant has its own, and
-- `created_ns` is that of the job itself, so that it belongs to that one and to no other.

CREATE TABLE plane_approval (
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

CREATE INDEX plane_approval_run ON plane_approval (run) WHERE run IS NOT NULL;
CREATE INDEX plane_approval_recent ON plane_approval (tenant, created_ns, job);
CREATE INDEX plane_approval_newest ON plane_approval (created_ns, job);
CREATE INDEX plane_approval_status ON plane_approval (status, created_ns, job);

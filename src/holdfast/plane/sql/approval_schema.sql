-- Contract: creates the approval table. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds; `message` is JSON text. The job's state decides whether an approval is
-- still open, because the job may have been cancelled or timed out; open approvals are found through their jobs. `revision`
-- increases with every decision. An approval outlives its job, whose id may be used again: each tenant has its own, and
-- `created_ns` is that of the job, so an approval belongs to exactly one job.

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

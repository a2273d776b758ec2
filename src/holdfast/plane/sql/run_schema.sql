-- Contract: creates the tables of workflows and runs in a database that has the plane's other tables. Run once, in one
-- transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds. `body`, `document` and `labels` are JSON text. `scope` is a tenant, or
-- `*` for all tenants. A definition never changes: another text is another version. A run is one document and always written
-- as a whole; `version` increases with every write, `holdfast_fence` never decreases.
--
-- `outline` is JSON text too: the part of a body or document that lists show. `outlined` is the version of the run that the
-- outline was made from: an older process writes documents without. Both large columns come last, because SQLite reads through
-- them to reach later columns.

CREATE TABLE plane_workflow (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    BIGINT NOT NULL,
    digest     TEXT NOT NULL,
    created_ns BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    outline    TEXT,
    body       TEXT NOT NULL,
    PRIMARY KEY (scope, name, version)
);

CREATE TABLE plane_run (
    id               TEXT NOT NULL PRIMARY KEY,
    tenant           TEXT NOT NULL,
    scope            TEXT NOT NULL,
    workflow         TEXT NOT NULL,
    workflow_version BIGINT NOT NULL,
    status           TEXT NOT NULL,
    risk             TEXT NOT NULL,
    created_ns       BIGINT NOT NULL,
    updated_ns       BIGINT NOT NULL,
    version          BIGINT NOT NULL,
    holdfast_fence   BIGINT,
    wake_ns          BIGINT,          -- when its timer is due; NULL: none
    idempotency_key  TEXT,
    submitted_by     TEXT NOT NULL,
    trace            TEXT NOT NULL,
    labels           TEXT NOT NULL,
    rerun_of         TEXT,
    outline          TEXT,
    outlined         BIGINT,
    document         TEXT NOT NULL,
    root             TEXT             -- of a run that another run started: the first run of its tree
);

-- One run for each idempotency key of a tenant.
CREATE UNIQUE INDEX plane_run_once ON plane_run (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- For the loops. Finished runs are not in these indexes, so their size is that of the unfinished work.
-- Runs that wait for approval have their own index: there may be thousands of them for weeks.
CREATE INDEX plane_run_moving ON plane_run (updated_ns, id) WHERE status IN ('pending', 'running');
CREATE INDEX plane_run_waiting ON plane_run (updated_ns, id) WHERE status = 'waiting';
CREATE INDEX plane_run_wake ON plane_run (wake_ns, id) WHERE wake_ns IS NOT NULL;

-- For quotas: the unfinished runs of a tenant, and the runs that one run has started, directly and through others.
CREATE INDEX plane_run_unfinished ON plane_run (tenant) WHERE status IN ('pending', 'running', 'waiting');
CREATE INDEX plane_run_tree ON plane_run (root) WHERE root IS NOT NULL;

-- For retention: finished runs by the time of their end, and those with idempotency keys by that of the key.
CREATE INDEX plane_run_over ON plane_run (updated_ns, id)
    WHERE status IN ('succeeded', 'failed', 'denied', 'cancelled', 'timed_out') AND idempotency_key IS NULL;
CREATE INDEX plane_run_over_keyed ON plane_run (created_ns, id)
    WHERE status IN ('succeeded', 'failed', 'denied', 'cancelled', 'timed_out') AND idempotency_key IS NOT NULL;

-- For lists: the runs of a tenant, newest first.
CREATE INDEX plane_run_recent ON plane_run (tenant, created_ns, id);
CREATE INDEX plane_run_newest ON plane_run (created_ns, id);

-- The same for one workflow, and of one status other than success. Most runs succeed and are not in the second.
CREATE INDEX plane_run_workflow ON plane_run (workflow, created_ns, id);
CREATE INDEX plane_run_status ON plane_run (status, created_ns, id) WHERE status <> 'succeeded';

CREATE TABLE plane_run_event (
    run     TEXT NOT NULL,
    version BIGINT NOT NULL,
    line    BIGINT NOT NULL,   -- several may share one write
    at_ns   BIGINT NOT NULL,
    step    TEXT,              -- NULL: the run itself
    kind    TEXT NOT NULL,
    detail  TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    fence   BIGINT,            -- NULL: under a degraded lease, or before the first
    actor   TEXT NOT NULL,
    PRIMARY KEY (run, version, line)
);

-- Contract: creates the tables of the schedules, in a database that has none of them. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds, by the clock of the database.
--
-- `done_ns` is the last decided due time; it never decreases. `next_ns` is the next one. `submit_ns` is when the loop has to decide: the
-- submission of the next due time, or 0 while a due time waits for the end of a job (`queued_ns`). NULL: the schedule does not fire.
CREATE TABLE plane_schedule (
    tenant        TEXT NOT NULL,
    name          TEXT NOT NULL,
    spec          TEXT NOT NULL,   -- JSON
    author        TEXT NOT NULL,   -- who has written the spec; may not approve its jobs
    app           TEXT,            -- that declares it; NULL: it was created at run time
    declared      BIGINT NOT NULL, -- 0: its app does not declare it any more
    paused        BIGINT NOT NULL,
    paused_by     TEXT,
    paused_reason TEXT,
    paused_ns     BIGINT,
    done_ns       BIGINT NOT NULL,
    queued_ns     BIGINT,
    next_ns       BIGINT,
    submit_ns     BIGINT,
    last_due_ns   BIGINT,
    last_fired_ns BIGINT,
    last_job      TEXT,
    problem       TEXT,
    fired         BIGINT NOT NULL,
    skipped       BIGINT NOT NULL,
    missed        BIGINT NOT NULL,
    created_ns    BIGINT NOT NULL,
    updated_ns    BIGINT NOT NULL,
    updated_by    TEXT NOT NULL,
    version       BIGINT NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE INDEX plane_schedule_due ON plane_schedule (submit_ns, tenant, name) WHERE submit_ns IS NOT NULL;
CREATE INDEX plane_schedule_paused ON plane_schedule (paused_ns, tenant, name) WHERE paused = 1;
CREATE INDEX plane_schedule_app ON plane_schedule (app) WHERE app IS NOT NULL;

-- The declarations of an app by their digest, and when processes with them were first and last seen. The row with an empty digest
-- serializes the transactions about one app.
CREATE TABLE plane_schedule_version (
    app      TEXT NOT NULL,
    digest   TEXT NOT NULL,
    first_ns BIGINT NOT NULL,
    seen_ns  BIGINT NOT NULL,
    PRIMARY KEY (app, digest)
);

-- Contract: creates every table of the plane's state, in a database that has none of them. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds. `payload`, `result`, `labels` and `body` are JSON text.
-- `holdfast_fence` is the fence of the scheduler's lease under which a job was last entered or written, `run_fence` that of
-- the worker's lease under which its current attempt runs; neither ever goes down. `version` rises with every write.

-- What may be long comes last: SQLite reads a long value on the way to every column behind it, and lists need neither.
CREATE TABLE plane_job (
    id              TEXT NOT NULL PRIMARY KEY,
    tenant          TEXT NOT NULL,
    topic           TEXT NOT NULL,
    pool            TEXT NOT NULL,
    state           TEXT NOT NULL,
    priority        BIGINT NOT NULL,
    attempt         BIGINT NOT NULL,
    max_attempts    BIGINT NOT NULL,
    created_ns      BIGINT NOT NULL,
    updated_ns      BIGINT NOT NULL,
    version         BIGINT NOT NULL,
    holdfast_fence  BIGINT,
    run_fence       BIGINT,
    worker          TEXT,
    reason          TEXT,
    code            TEXT,
    idempotency_key TEXT,
    timeout_ns      BIGINT,
    deadline_ns     BIGINT,
    not_before_ns   BIGINT NOT NULL,
    queue           TEXT NOT NULL DEFAULT 'pool',
    submitted_by    TEXT NOT NULL,
    trace           TEXT NOT NULL,
    labels          TEXT NOT NULL,
    payload         TEXT NOT NULL,
    result          TEXT
);

-- One job for each key of a tenant.
CREATE UNIQUE INDEX plane_job_once ON plane_job (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- What the loops look for: jobs that are not over, oldest change first. Finished jobs are not in it, so its size is that
-- of the work at hand, however many jobs are stored.
CREATE INDEX plane_job_live ON plane_job (state, updated_ns, id)
    WHERE state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING');

-- `queue` names the queue that a job waits in:
-- 'pool': the queue of its pool. Due jobs by pool and tenant, first come first served within a priority.
-- 'topic': the queue of its topic, which has fewer slots than its pool, or no worker. So it delays no other job.
-- 'delayed': no queue, until `not_before_ns`. In the other two, `not_before_ns` is 0.
-- A job keeps 'topic' while it is with workers, because the jobs in these slots are counted. After that, it has no meaning.
CREATE INDEX plane_job_queue ON plane_job (pool, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'pool';

CREATE INDEX plane_job_aside ON plane_job (pool, topic, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic';
CREATE INDEX plane_job_placed ON plane_job (pool, topic)
    WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND queue = 'topic';

-- The same jobs by topic alone: those that wait in the queue of a topic without workers, and that a worker of any pool may serve.
CREATE INDEX plane_job_unserved ON plane_job (topic, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic';

-- Jobs that wait for a time, the soonest first.
CREATE INDEX plane_job_due ON plane_job (not_before_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'delayed';

CREATE INDEX plane_job_deadline ON plane_job (deadline_ns, id) WHERE deadline_ns IS NOT NULL;

-- What people look for: the jobs of a tenant, newest first.
CREATE INDEX plane_job_recent ON plane_job (tenant, created_ns, id);
CREATE INDEX plane_job_newest ON plane_job (created_ns, id);

-- The same of one topic, and of one state that is an end other than success. Most jobs succeed and are not in the second.
CREATE INDEX plane_job_topic ON plane_job (topic, created_ns, id);
CREATE INDEX plane_job_failed ON plane_job (state, created_ns, id)
    WHERE state IN ('FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED');

CREATE TABLE plane_event (
    job     TEXT NOT NULL,
    version BIGINT NOT NULL,
    step    BIGINT NOT NULL,   -- several moves may share one write
    at_ns   BIGINT NOT NULL,
    before  TEXT,
    after   TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    fence   BIGINT,
    actor   TEXT NOT NULL,
    reason  TEXT,
    traceback TEXT,            -- of a failed attempt: the end of it
    PRIMARY KEY (job, version, step)
);

-- The progress that the newest attempt of a job last reported. `made_ns` is the job's `created_ns`, `fence` that of the
-- worker's lease under which the attempt runs.
CREATE TABLE plane_progress (
    job      TEXT NOT NULL PRIMARY KEY,
    made_ns  BIGINT NOT NULL,
    attempt  BIGINT NOT NULL,
    fence    BIGINT NOT NULL,
    at_ns    BIGINT NOT NULL,
    fraction DOUBLE PRECISION,
    note     TEXT
);

-- Values that attempts emitted, in the order of `fence` and `number`. `made_ns` and `fence` as above.
CREATE TABLE plane_emitted (
    job     TEXT NOT NULL,
    made_ns BIGINT NOT NULL,
    fence   BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    at_ns   BIGINT NOT NULL,
    value   TEXT NOT NULL,     -- JSON
    PRIMARY KEY (job, made_ns, fence, number)
);

-- Children: jobs that job functions submitted. `parent` is the id of a job, made at `made_ns`, or a step of a run, with 0.
CREATE TABLE plane_child (
    parent   TEXT NOT NULL,
    made_ns  BIGINT NOT NULL,
    child    TEXT NOT NULL,
    detached BIGINT NOT NULL,  -- 1: it is not cancelled with its parent
    at_ns    BIGINT NOT NULL,
    PRIMARY KEY (parent, made_ns, child)
);
CREATE INDEX plane_child_of ON plane_child (child);

-- How many jobs of a tenant are with workers. Kept in the same transaction as their states, so a limit is never passed.
CREATE TABLE plane_tenant (
    tenant     TEXT NOT NULL PRIMARY KEY,
    running    BIGINT NOT NULL CHECK (running >= 0),
    slots      BIGINT            -- how many may be; NULL: the default of the configuration
);

-- How many jobs of a pool are with workers. Kept in the same transaction as their states, so that schedulers who know how
-- much the workers can take never give them more between them.
CREATE TABLE plane_pool (
    pool       TEXT NOT NULL PRIMARY KEY,
    running    BIGINT NOT NULL CHECK (running >= 0)
);

-- The dead letters of jobs. A dead letter outlives its job, whose id another tenant may use then: `made_ns` names the job by its
-- creation time (0: it is of a message), and each tenant has its own.
CREATE TABLE plane_dead_letter (
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

CREATE INDEX plane_dead_letter_recent ON plane_dead_letter (tenant, at_ns, id);
CREATE INDEX plane_dead_letter_age ON plane_dead_letter (at_ns, id);

CREATE TABLE plane_worker (
    worker   TEXT NOT NULL PRIMARY KEY,
    pool     TEXT NOT NULL,
    topics   TEXT NOT NULL,
    capacity BIGINT NOT NULL,
    active   BIGINT NOT NULL,
    at_ns    BIGINT NOT NULL,
    draining BIGINT NOT NULL,
    host     TEXT NOT NULL,
    pid      BIGINT NOT NULL,
    places   TEXT,             -- of topics that have fewer than its capacity, as a JSON object; NULL: there is none
    by_topic BIGINT NOT NULL DEFAULT 0  -- 1: it takes from the queues of its topics; 0: only from the shared one of its pool
);

-- Small documents that one writer at a time keeps, such as the worker snapshot.
CREATE TABLE plane_document (
    name           TEXT NOT NULL PRIMARY KEY,
    body           TEXT NOT NULL,
    writer         TEXT NOT NULL,
    at_ns          BIGINT NOT NULL,
    holdfast_fence BIGINT
);

-- Contract: creates the tables of the bus, in a database that has none of them. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds; `body` is JSON text. `place` orders messages by age, and is unique
-- enough: two of the same place may be delivered in either order. A message has one row for each group that gets it.

-- The queue of the embedded bus.
-- state 0: ready. 1: claimed by a consumer, or to be delivered later; in both cases ready when `due_ns` is over.
-- 2: done; kept without its body until `due_ns`, so that the same id is not taken for a new message.
-- `deliveries` names the claim: it rises with each, and a consumer with an older number has lost the message.
CREATE TABLE plane_message (
    id            TEXT NOT NULL,
    recipient     TEXT NOT NULL,
    subject       TEXT NOT NULL,
    body          TEXT NOT NULL,
    message_key   TEXT NOT NULL,
    fence_key     TEXT,
    fence         BIGINT,
    priority      BIGINT NOT NULL,
    not_before_ns BIGINT NOT NULL,
    first_ns      BIGINT NOT NULL,
    place         BIGINT NOT NULL,
    state         BIGINT NOT NULL,
    due_ns        BIGINT NOT NULL,
    deliveries    BIGINT NOT NULL,
    failures      BIGINT NOT NULL,
    excused       BIGINT NOT NULL,   -- nacked without fault: busy, store trouble, a consumer that left
    PRIMARY KEY (id, recipient)
);

-- Each row is in one of the three, so a claim costs the same however many messages wait for their time or are done.
CREATE INDEX plane_message_ready ON plane_message (subject, recipient, priority DESC, place) WHERE state = 0;
CREATE INDEX plane_message_later ON plane_message (subject, recipient, due_ns) WHERE state = 1;
CREATE INDEX plane_message_done ON plane_message (due_ns) WHERE state = 2;

-- What is staged for a bus outside of the database, until that has it. `owner` names the lane: each process publishes its
-- own right after the commit, and any process the rest. Messages for later are in a lane of their own, named ''.
CREATE TABLE plane_outbox (
    id            TEXT NOT NULL,
    recipient     TEXT NOT NULL,
    subject       TEXT NOT NULL,
    body          TEXT NOT NULL,
    message_key   TEXT NOT NULL,
    fence_key     TEXT,
    fence         BIGINT,
    priority      BIGINT NOT NULL,
    not_before_ns BIGINT NOT NULL,
    first_ns      BIGINT NOT NULL,
    place         BIGINT NOT NULL,
    due_ns        BIGINT NOT NULL,   -- when it may be published
    owner         TEXT NOT NULL,
    PRIMARY KEY (id, recipient)
);

CREATE INDEX plane_outbox_own ON plane_outbox (owner, due_ns, place);
CREATE INDEX plane_outbox_left ON plane_outbox (due_ns, place);

-- How often a message on such a bus has failed. Most never do, and have no row. On any bus: how often a run of an attempt was
-- nacked, with the name of the attempt for an id (`attempt_returned`).
CREATE TABLE plane_failure (
    id        TEXT NOT NULL,
    recipient TEXT NOT NULL,
    failures  BIGINT NOT NULL,
    at_ns     BIGINT NOT NULL,
    PRIMARY KEY (id, recipient)
);

CREATE INDEX plane_failure_age ON plane_failure (at_ns);

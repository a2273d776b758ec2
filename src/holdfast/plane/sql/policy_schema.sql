-- Contract: creates the tables of the error policy in a database that has none of them. Run once, in one transaction.
--
-- Times end in `_ns` and are Unix time in nanoseconds, by the wall clock of the host that wrote them. A revision is the
-- number of a change, in the order of changes; changes take turns at the one row of plane_policy_turn.

CREATE TABLE plane_policy_turn (
    one      BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    revision BIGINT NOT NULL
);

INSERT INTO plane_policy_turn (one, revision) VALUES (1, 0);

-- The mode of each risk class, and the change that set it.
CREATE TABLE plane_policy (
    risk     TEXT NOT NULL PRIMARY KEY,
    mode     TEXT NOT NULL,
    revision BIGINT NOT NULL,
    since_ns BIGINT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    source   TEXT NOT NULL
);

-- Every change, forever. Rows are never changed or deleted.
CREATE TABLE plane_policy_history (
    revision BIGINT NOT NULL PRIMARY KEY,
    risk     TEXT NOT NULL,
    before   TEXT NOT NULL,
    after    TEXT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    source   TEXT NOT NULL,
    at_ns    BIGINT NOT NULL
);

CREATE INDEX plane_policy_history_of_risk ON plane_policy_history (risk, revision);

-- Settings that are switched at run time beside the risk classes: every switch, forever. The newest row of a name is the
-- value in force. Revisions are those of plane_policy_turn, and so one sequence with those of plane_policy_history.
CREATE TABLE plane_policy_setting (
    revision BIGINT NOT NULL PRIMARY KEY,
    name     TEXT NOT NULL,
    before   TEXT NOT NULL,
    after    TEXT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    source   TEXT NOT NULL,
    at_ns    BIGINT NOT NULL
);

CREATE INDEX plane_policy_setting_of_name ON plane_policy_setting (name, revision);

-- The last entries of files, so that an unchanged file is not taken for a change.
CREATE TABLE plane_policy_word (
    source TEXT NOT NULL,
    risk   TEXT NOT NULL,
    mode   TEXT NOT NULL,
    at_ns  BIGINT NOT NULL,
    PRIMARY KEY (source, risk)
);

-- Exercises of the fallback path, forever. Each has an end, so that none can be forgotten. One that was ended early or
-- replaced has that time as its end, and names who did it.
CREATE TABLE plane_policy_exercise (
    revision BIGINT NOT NULL PRIMARY KEY,
    family   TEXT NOT NULL,
    parts    BIGINT NOT NULL,
    risk     TEXT,
    forced   BIGINT NOT NULL,
    since_ns BIGINT NOT NULL,
    until_ns BIGINT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    ended_by TEXT
);

CREATE INDEX plane_policy_exercise_running ON plane_policy_exercise (until_ns);

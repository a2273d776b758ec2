-- Contract: changes the tables of the plane's state from version 7 to 8: values that job functions emit. Older code does not use them.
-- Run once, in one transaction.

CREATE TABLE plane_emitted (
    job     TEXT NOT NULL,
    made_ns BIGINT NOT NULL,
    fence   BIGINT NOT NULL,
    number  BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    at_ns   BIGINT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (job, made_ns, fence, number)
);

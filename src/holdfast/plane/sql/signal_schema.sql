-- Contract: makes the table of the signals, in a database that has none of it. Run once, in one transaction.
--
-- A row is how often something happened in one process within ten seconds. It is written as a whole and never added to,
-- so that writing it twice does not count anything twice; what all processes have seen is the sum.

CREATE TABLE plane_signal (
    bucket_ns BIGINT NOT NULL,
    process   TEXT NOT NULL,
    kind      TEXT NOT NULL,
    family    TEXT NOT NULL,
    risk      TEXT NOT NULL,
    number    BIGINT NOT NULL,
    PRIMARY KEY (bucket_ns, process, kind, family, risk)
);

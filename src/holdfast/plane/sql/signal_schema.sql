-- Contract: creates the table of duplicate and fallback counts, in a database that has none. Run once, in one transaction.
--
-- A row is the count of an event in one process within ten seconds. It is written as a whole and never added to, so a second
-- write does not count twice. The count over all processes is the sum.

CREATE TABLE plane_signal (
    bucket_ns BIGINT NOT NULL,
    process   TEXT NOT NULL,
    kind      TEXT NOT NULL,
    family    TEXT NOT NULL,
    risk      TEXT NOT NULL,
    number    BIGINT NOT NULL,
    PRIMARY KEY (bucket_ns, process, kind, family, risk)
);

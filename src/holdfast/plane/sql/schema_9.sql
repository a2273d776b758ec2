-- Contract: changes the tables of the plane's state from version 8 to 9: which jobs were submitted by which jobs. Older code does not
-- use it. Run once, in one transaction.

CREATE TABLE plane_child (
    parent   TEXT NOT NULL,
    made_ns  BIGINT NOT NULL,
    child    TEXT NOT NULL,
    detached BIGINT NOT NULL,
    at_ns    BIGINT NOT NULL,
    PRIMARY KEY (parent, made_ns, child)
);
CREATE INDEX plane_child_of ON plane_child (child);

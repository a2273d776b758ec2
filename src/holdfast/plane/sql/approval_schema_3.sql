-- Contract: leads the table of what waits for a person from version 2 to 3: lists by status go by an index. Older code works with
-- it. Run once, in one transaction.

CREATE INDEX plane_approval_status ON plane_approval (status, created_ns, job);

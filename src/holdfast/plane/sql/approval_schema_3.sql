-- Contract: migrates the approval table from version 2 to 3: an index for lists by status. Older code works with it. Run once,
-- in one transaction.

CREATE INDEX plane_approval_status ON plane_approval (status, created_ns, job);

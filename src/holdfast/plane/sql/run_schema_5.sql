-- Contract: migrates the tables of workflows and runs from version 4 to 5: indexes for lists of runs of one workflow, or of one
-- status other than success. Older code works with it. Run once, in one transaction.

CREATE INDEX plane_run_workflow ON plane_run (workflow, created_ns, id);
CREATE INDEX plane_run_status ON plane_run (status, created_ns, id) WHERE status <> 'succeeded';

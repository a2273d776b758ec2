-- Contract: migrates the tables of workflows and runs from version 2 to 3: an index for runs that wait for approval, so that the
-- loops do not read past them. Run once, in one transaction.

DROP INDEX IF EXISTS plane_run_live;
CREATE INDEX plane_run_moving ON plane_run (updated_ns, id) WHERE status IN ('pending', 'running');
CREATE INDEX plane_run_waiting ON plane_run (updated_ns, id) WHERE status = 'waiting';

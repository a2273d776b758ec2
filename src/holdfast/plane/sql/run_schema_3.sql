-- Contract: leads the tables of workflows and their runs from version 2 to 3: runs that wait for a person get an index of their own,
-- so that the loops do not read past them. Run once, in one transaction.

DROP INDEX IF EXISTS plane_run_live;
CREATE INDEX plane_run_moving ON plane_run (updated_ns, id) WHERE status IN ('pending', 'running');
CREATE INDEX plane_run_waiting ON plane_run (updated_ns, id) WHERE status = 'waiting';

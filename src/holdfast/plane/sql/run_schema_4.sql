-- Contract: migrates the tables of workflows and runs from version 3 to 4: a run that another run started names the root of its
-- tree, and the unfinished runs of a tenant have an index, so that both can be counted. Run once, in one transaction.

ALTER TABLE plane_run ADD COLUMN root TEXT;
CREATE INDEX plane_run_tree ON plane_run (root) WHERE root IS NOT NULL;
CREATE INDEX plane_run_unfinished ON plane_run (tenant) WHERE status IN ('pending', 'running', 'waiting');

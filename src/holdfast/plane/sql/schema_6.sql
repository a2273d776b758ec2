-- Contract: changes the tables of the plane's state from version 5 to 6: the column `queue` names the queue that a job waits in, which
-- the sign of `not_before_ns` encoded before. Run once, in one transaction.

ALTER TABLE plane_job ADD COLUMN queue TEXT NOT NULL DEFAULT 'pool';
UPDATE plane_job SET queue = 'delayed' WHERE not_before_ns > 0;
UPDATE plane_job SET queue = 'topic', not_before_ns = 0 WHERE not_before_ns < 0;

DROP INDEX IF EXISTS plane_job_queue;
DROP INDEX IF EXISTS plane_job_aside;
DROP INDEX IF EXISTS plane_job_placed;
DROP INDEX IF EXISTS plane_job_unserved;
DROP INDEX IF EXISTS plane_job_due;
CREATE INDEX plane_job_queue ON plane_job (pool, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'pool';
CREATE INDEX plane_job_aside ON plane_job (pool, topic, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic';
CREATE INDEX plane_job_placed ON plane_job (pool, topic)
    WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND queue = 'topic';
CREATE INDEX plane_job_unserved ON plane_job (topic, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic';
CREATE INDEX plane_job_due ON plane_job (not_before_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND queue = 'delayed';

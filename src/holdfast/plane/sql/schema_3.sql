-- Contract: migrates the tables of the plane's state from version 2 to 3: workers advertise the slots of topics that
-- have fewer than their pool, and jobs of such topics wait in queues of their own. Older workers continue without that.
-- Run once, in one transaction.

ALTER TABLE plane_worker ADD COLUMN places TEXT;

CREATE INDEX plane_job_aside ON plane_job (pool, topic, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND not_before_ns < 0;
CREATE INDEX plane_job_placed ON plane_job (pool, topic)
    WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND not_before_ns < 0;

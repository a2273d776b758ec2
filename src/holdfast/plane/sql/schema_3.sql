-- Contract: leads the tables of the plane's state from version 2 to 3: workers say how many places topics have that have fewer than
-- their pool, and jobs of such topics wait in lines of their own. A worker of an older version goes on, and says nothing of it. Run
-- once, in one transaction.

ALTER TABLE plane_worker ADD COLUMN places TEXT;

CREATE INDEX plane_job_aside ON plane_job (pool, topic, tenant, priority DESC, created_ns, id)
    WHERE state IN ('PENDING', 'RETRYING') AND not_before_ns < 0;
CREATE INDEX plane_job_placed ON plane_job (pool, topic)
    WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND not_before_ns < 0;

-- Contract: a page of the runs of a tenant, newest first. An empty status or workflow: any.
SELECT * FROM plane_run
WHERE tenant = :tenant AND (created_ns < :created_ns OR (created_ns = :created_ns AND id < :id))
    AND (:status = '' OR status = :status) AND (:workflow = '' OR workflow = :workflow)
ORDER BY created_ns DESC, id DESC LIMIT :most

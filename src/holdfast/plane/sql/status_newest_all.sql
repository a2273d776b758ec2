-- Contract: the newest jobs of all tenants, without what their users put into them.
SELECT {brief}
FROM plane_job ORDER BY created_ns DESC, id DESC LIMIT :most

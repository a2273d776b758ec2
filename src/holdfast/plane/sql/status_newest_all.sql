-- Contract: outlines of the newest jobs of all tenants.
SELECT {brief}
FROM plane_job ORDER BY created_ns DESC, id DESC LIMIT :most

-- Contract: the run that a tenant started with an idempotency key.
SELECT * FROM plane_run WHERE tenant = :tenant AND idempotency_key = :idempotency_key

-- Contract: the job that a tenant has submitted under an idempotency key.
SELECT * FROM plane_job WHERE tenant = :tenant AND idempotency_key = :idempotency_key

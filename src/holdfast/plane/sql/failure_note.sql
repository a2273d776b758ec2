-- Contract: a delivery has failed; returns how often that was so.
INSERT INTO plane_failure (id, recipient, failures, at_ns) VALUES (:id, :recipient, 1, :at_ns)
ON CONFLICT (id, recipient) DO UPDATE SET failures = plane_failure.failures + 1, at_ns = excluded.at_ns
RETURNING failures

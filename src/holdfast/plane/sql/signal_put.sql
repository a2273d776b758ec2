-- Contract: sets the count of an event in one process and bucket.
INSERT INTO plane_signal (bucket_ns, process, kind, family, risk, number)
VALUES (:bucket_ns, :process, :kind, :family, :risk, :number)
ON CONFLICT (bucket_ns, process, kind, family, risk) DO UPDATE SET number = excluded.number

-- Contract: how often something happened in one process within one bucket, in place of what was said of it before.
INSERT INTO plane_signal (bucket_ns, process, kind, family, risk, number)
VALUES (:bucket_ns, :process, :kind, :family, :risk, :number)
ON CONFLICT (bucket_ns, process, kind, family, risk) DO UPDATE SET number = excluded.number

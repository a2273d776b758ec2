-- Contract: deletes counts that are older than a time.
DELETE FROM plane_signal WHERE bucket_ns < :before_ns

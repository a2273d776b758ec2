-- Contract: notes that a version of an app's declarations runs. With an empty digest: locks the app until the commit.
INSERT INTO plane_schedule_version (app, digest, first_ns, seen_ns) VALUES (:app, :digest, :now_ns, :now_ns)
ON CONFLICT (app, digest) DO UPDATE SET seen_ns = excluded.seen_ns

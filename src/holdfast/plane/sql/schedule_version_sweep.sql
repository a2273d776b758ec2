-- Contract: forgets versions of an app's declarations that no process has had since a time.
DELETE FROM plane_schedule_version WHERE app = :app AND digest <> '' AND seen_ns < :until_ns

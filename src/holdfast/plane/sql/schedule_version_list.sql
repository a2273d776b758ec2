-- Contract: the versions of an app's declarations.
SELECT digest, first_ns, seen_ns FROM plane_schedule_version WHERE app = :app AND digest <> ''

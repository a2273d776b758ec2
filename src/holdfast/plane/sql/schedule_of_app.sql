-- Contract: the schedules that an app declares or has declared.
SELECT * FROM plane_schedule WHERE app = :app ORDER BY tenant, name

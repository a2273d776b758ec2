-- Contract: one schedule.
SELECT * FROM plane_schedule WHERE tenant = :tenant AND name = :name

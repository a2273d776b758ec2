-- Contract: schedules whose next due time should have been decided before a time, the latest ones first. Those that wait for the end
-- of a job are not late.
SELECT tenant, name, submit_ns FROM plane_schedule
WHERE submit_ns IS NOT NULL AND submit_ns > 0 AND submit_ns < :before_ns ORDER BY submit_ns, tenant, name LIMIT :most

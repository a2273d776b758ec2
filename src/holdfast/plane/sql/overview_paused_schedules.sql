-- Contract: paused schedules, those that were paused first.
SELECT tenant, name, paused_ns, paused_by, paused_reason FROM plane_schedule
WHERE paused = 1 AND declared = 1 ORDER BY paused_ns, tenant, name LIMIT :most

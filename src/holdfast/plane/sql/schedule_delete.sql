-- Contract: deletes a schedule. Its jobs stay.
DELETE FROM plane_schedule WHERE tenant = :tenant AND name = :name

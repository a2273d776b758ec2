-- Contract: the slot of a resource. Postgres adds FOR UPDATE; SQLite has one writer at a time anyway.
SELECT fence FROM plane_resource_slot WHERE slot = :slot

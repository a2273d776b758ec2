-- Contract: deletes the expired reader blocks of a slot.
DELETE FROM plane_resource_wish WHERE slot = :slot AND until_ns <= :now_ns

-- Contract: forgets the wishes of a slot that are over.
DELETE FROM plane_resource_wish WHERE slot = :slot AND until_ns <= :now_ns

-- Contract: notes the fence of the newest grant of a slot, which the transaction holds.
UPDATE plane_resource_slot SET fence = :fence WHERE slot = :slot AND fence < :fence

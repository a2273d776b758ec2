-- Contract: stores the fence of the newest grant of a slot, which the transaction has locked.
UPDATE plane_resource_slot SET fence = :fence WHERE slot = :slot AND fence < :fence

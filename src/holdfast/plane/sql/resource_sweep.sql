-- Contract: forgets what is over in a slot, which the transaction holds.
DELETE FROM plane_resource_lock WHERE slot = :slot AND expires_ns <= :now_ns

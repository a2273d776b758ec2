-- Contract: deletes the expired holders of a slot, which the transaction has locked.
DELETE FROM plane_resource_lock WHERE slot = :slot AND expires_ns <= :now_ns

-- Contract: takes slots of a tenant (below zero: frees them). The row is locked by this transaction.
UPDATE plane_tenant SET running = running + :shift WHERE tenant = :name

-- Contract: takes (or, below zero, gives back) some of a tenant's slots. The row is held by this transaction.
UPDATE plane_tenant SET running = running + :shift WHERE tenant = :name

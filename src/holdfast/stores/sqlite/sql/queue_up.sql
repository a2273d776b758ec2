-- Contract: makes a place at the end of the queue, or extends the lease of the one that is there, which keeps its order.
INSERT INTO holdfast_ticket (key, ticket, address, expires_ns, expires_wall_ns, clock, process)
VALUES (:key, :ticket, :address, :expires_ns, :expires_wall_ns, :clock, :process)
ON CONFLICT (key, ticket) DO UPDATE SET
    address = excluded.address,
    expires_ns = excluded.expires_ns,
    expires_wall_ns = excluded.expires_wall_ns,
    clock = excluded.clock,
    process = excluded.process

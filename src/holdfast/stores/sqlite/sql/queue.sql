-- Contract: the places in the queue of `:key`, first come first, dead ones included; the reader judges.
SELECT ticket, clock, process, expires_ns, expires_wall_ns FROM holdfast_ticket WHERE key = :key ORDER BY id

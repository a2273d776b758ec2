-- Contract: gives up one place in the queue, if it is there.
DELETE FROM holdfast_ticket WHERE key = :key AND ticket = :ticket

-- Contract: forgets one waiter.
DELETE FROM holdfast_listener WHERE key = :key AND address = :address

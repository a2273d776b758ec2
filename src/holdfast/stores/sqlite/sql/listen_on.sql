-- Contract: extends the registration of one waiter, which keeps its order. Changes one row, or none when it is gone.
UPDATE holdfast_listener SET expires_wall_ns = :expires_wall_ns WHERE key = :key AND address = :address

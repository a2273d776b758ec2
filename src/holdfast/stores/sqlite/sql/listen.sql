-- Contract: registers one waiter for hints about `:key`.
INSERT INTO holdfast_listener (key, address, place, expires_wall_ns) VALUES (:key, :address, :place, :expires_wall_ns)

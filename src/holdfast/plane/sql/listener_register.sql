-- Contract: registers one listener. The same address again changes nothing.
INSERT INTO plane_listener (address, place, since_wall_ns) VALUES (:address, :place, :since_wall_ns)
ON CONFLICT (address) DO NOTHING;

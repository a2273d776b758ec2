-- Contract: the other listeners that can be reached from a `place`.
SELECT address FROM plane_listener WHERE place = :place AND address <> :address;

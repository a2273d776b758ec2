-- Contract: the listeners at a place, except oneself: to whom a hint can be sent from there.
SELECT address FROM plane_listener WHERE place = :place AND address <> :address;

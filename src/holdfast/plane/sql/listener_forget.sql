-- Contract: deletes one listener.
DELETE FROM plane_listener WHERE address = :address;

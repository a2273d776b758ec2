-- Contract: a writer no longer blocks new readers: it was granted the resource, or has gone.
DELETE FROM plane_resource_wish WHERE tenant = :tenant AND resource = :resource AND owner = :owner

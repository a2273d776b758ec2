-- Contract: no waiting writer blocks new readers of a resource any more. Writers that still wait ask again.
DELETE FROM plane_resource_wish WHERE tenant = :tenant AND resource = :resource

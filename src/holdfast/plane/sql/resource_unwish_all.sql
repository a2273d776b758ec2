-- Contract: forgets all who wait to have a resource alone. Those who still do ask again.
DELETE FROM plane_resource_wish WHERE tenant = :tenant AND resource = :resource

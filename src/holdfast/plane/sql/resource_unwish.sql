-- Contract: takes a wish back: it was granted.
DELETE FROM plane_resource_wish WHERE tenant = :tenant AND resource = :resource AND owner = :owner

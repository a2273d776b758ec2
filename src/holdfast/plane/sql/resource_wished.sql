-- Contract: until when somebody's wish to have a resource alone stands; NULL: nobody's does.
SELECT MAX(until_ns) AS until_ns FROM plane_resource_wish
WHERE tenant = :tenant AND resource = :resource AND until_ns > :now_ns

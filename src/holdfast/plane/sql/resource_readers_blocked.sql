-- Contract: the time until which waiting writers block new readers of a resource; NULL: no writer waits.
SELECT MAX(until_ns) AS until_ns FROM plane_resource_wish
WHERE tenant = :tenant AND resource = :resource AND until_ns > :now_ns

-- Contract: some tenants, named by a JSON array, in the order of their turns: those after `:after`, then those from the beginning.
SELECT value AS tenant FROM json_each(:tenants) ORDER BY value <= :after, value

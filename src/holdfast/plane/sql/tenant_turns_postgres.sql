-- Contract: some tenants, named by a JSON array, in the order of their turns: those after `:after`, then those from the beginning.
SELECT tenant FROM json_array_elements_text(CAST(:tenants AS json)) AS named (tenant) ORDER BY tenant <= :after, tenant

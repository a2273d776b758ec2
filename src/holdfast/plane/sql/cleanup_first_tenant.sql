-- Contract: the first tenant in alphabetical order that has a dead letter. That of messages without a tenant is empty.
SELECT tenant FROM plane_dead_letter ORDER BY tenant LIMIT 1

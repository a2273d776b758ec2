-- Contract: how many dead letters of each tenant have not been tried again. Reads every dead letter.
SELECT tenant, COUNT(*) AS letters FROM plane_dead_letter WHERE retried_as IS NULL GROUP BY tenant

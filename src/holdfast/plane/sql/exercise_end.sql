-- Contract: ends the exercises of a family that are not over; their families, one for each.
UPDATE plane_policy_exercise SET until_ns = :now_ns, ended_by = :actor
WHERE family = :family AND until_ns > :now_ns
RETURNING family

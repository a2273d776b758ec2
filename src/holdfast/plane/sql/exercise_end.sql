-- Contract: ends the running exercises of a family and returns their families.
UPDATE plane_policy_exercise SET until_ns = :now_ns, ended_by = :actor
WHERE family = :family AND until_ns > :now_ns
RETURNING family

-- Contract: the number of the last change: the cheap query of processes that follow the policy.
SELECT revision FROM plane_policy_turn WHERE one = 1

-- Contract: the number of the last change, and nothing else: the cheap question of those who follow.
SELECT revision FROM plane_policy_turn WHERE one = 1

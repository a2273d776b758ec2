-- Contract: the number of a new change. The turn was taken.
UPDATE plane_policy_turn SET revision = revision + 1 WHERE one = 1 RETURNING revision

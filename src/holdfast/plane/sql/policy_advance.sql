-- Contract: the number of a new change. The transaction has taken the turn.
UPDATE plane_policy_turn SET revision = revision + 1 WHERE one = 1 RETURNING revision

-- Contract: makes whoever changes the policy wait for those who do so already, and says the number of the last change.
UPDATE plane_policy_turn SET revision = revision WHERE one = 1 RETURNING revision

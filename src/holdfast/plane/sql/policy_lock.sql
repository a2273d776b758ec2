-- Contract: makes a transaction that changes the policy wait for earlier ones. Returns the revision of the last change.
UPDATE plane_policy_turn SET revision = revision WHERE one = 1 RETURNING revision

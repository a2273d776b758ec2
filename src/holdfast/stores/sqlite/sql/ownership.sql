-- Contract: an expression, not a statement. True while the token that was granted this fence has the key.
-- It becomes part of a user's own statement, so its parameters have names that no user's statement has.
EXISTS (SELECT 1 FROM {prefix}holdfast_lease
        WHERE key = :holdfast_key AND token = :holdfast_owned AND fence = :holdfast_at)

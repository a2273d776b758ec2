-- Contract: an expression, not a statement. True while the key is in the hands of the token that was granted this fence.
-- It becomes part of a user's own statement, so its parameters have names that nobody else uses.
EXISTS (SELECT 1 FROM {prefix}holdfast_lease
        WHERE key = :holdfast_key AND token = :holdfast_owned AND fence = :holdfast_at)

-- Contract: an expression, not a statement. True while the token that was granted this fence has the key. It locks the
-- lease until the caller's transaction ends: until then no other caller is granted the key, whatever the clock, and no
-- release takes effect. Renewals go on. It becomes part of a user's own statement, so its parameters have names of ours.
EXISTS (SELECT 1 FROM {schema}.holdfast_lease WHERE key = %(holdfast_key)s
        AND token = %(holdfast_owned)s AND fence = %(holdfast_at)s FOR KEY SHARE)

-- Contract: removes the row of `:key`, whatever its token. Only after the same transaction found it dead or broke it.
DELETE FROM holdfast_lease WHERE key = :key

-- Contract: the values that a job emitted after a place, in their order, at most `:most` of them.
SELECT fence, number, attempt, at_ns, value FROM plane_emitted
WHERE job = :job AND made_ns = :made_ns AND (fence, number) > (:fence, :number)
ORDER BY fence, number LIMIT :most

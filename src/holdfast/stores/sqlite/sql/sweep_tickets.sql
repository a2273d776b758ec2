-- Contract: removes at most `:most` tickets that expired, judged as in `sweep_leases.sql`.
DELETE FROM holdfast_ticket WHERE id IN (
    SELECT id FROM holdfast_ticket
    WHERE CASE WHEN clock = :clock THEN expires_ns <= :now_ns ELSE expires_wall_ns <= :wall_ns END
    LIMIT :most
)

-- Contract: writes a run that was read in the same transaction. No row: a newer fence, or another version, has written it. A
-- write without a fence (under a degraded lease) keeps the stored one.
UPDATE plane_run SET
    status = :status, document = :document, outline = :outline, outlined = version + 1, wake_ns = :wake_ns,
    updated_ns = :now_ns, version = version + 1,
    holdfast_fence = COALESCE(CAST(:fence AS BIGINT), holdfast_fence)
WHERE id = :id AND version = :version
    AND (CAST(:fence AS BIGINT) IS NULL OR holdfast_fence IS NULL OR holdfast_fence <= CAST(:fence AS BIGINT))
RETURNING version, holdfast_fence

-- Contract: the statements of the outbox, for both dialects. Each begins at a line with its name. `:name` is the place of
-- a value. {now} is the database's time in milliseconds, {alone} locks the row that was found against other relays, and
-- skips rows that are locked, where the dialect has that; in SQLite one relay at a time is let in by other means.

-- name: note
-- Raise the ledger entry of a key, and hold it until the end of the transaction, which puts all who add under one key in
-- line: their ids are given in the order of their commits. No row: a higher fence is noted.
INSERT INTO holdfast_guard_fence AS entry (place, resource, fence)
VALUES ('holdfast_guard_outbox', :key, :fence)
ON CONFLICT (place, resource) DO UPDATE SET fence = excluded.fence, seen_at = CURRENT_TIMESTAMP
WHERE entry.fence <= excluded.fence
RETURNING fence

-- name: noted
SELECT fence FROM holdfast_guard_fence WHERE place = 'holdfast_guard_outbox' AND resource = :key

-- name: add
INSERT INTO holdfast_guard_outbox (message_id, key, fence, topic, headers, body, made_ms, due_ms)
VALUES (:message_id, :key, :fence, :topic, :headers, :body, {now}, {now})
RETURNING id

-- name: head
-- The oldest message that is due and is the first of its key. One that waits or is parked holds back the later ones of
-- its key, and no others.
SELECT message.* FROM holdfast_guard_outbox AS message
WHERE message.sent_ms IS NULL AND message.parked_ms IS NULL AND message.due_ms <= {now}
  AND NOT EXISTS (
    SELECT 1 FROM holdfast_guard_outbox AS earlier
    WHERE earlier.key = message.key AND earlier.sent_ms IS NULL AND earlier.id < message.id
  )
ORDER BY message.id LIMIT 1 {alone}

-- name: head_past_parked
-- The same, but what is parked holds nothing back.
SELECT message.* FROM holdfast_guard_outbox AS message
WHERE message.sent_ms IS NULL AND message.parked_ms IS NULL AND message.due_ms <= {now}
  AND NOT EXISTS (
    SELECT 1 FROM holdfast_guard_outbox AS earlier
    WHERE earlier.key = message.key AND earlier.sent_ms IS NULL AND earlier.parked_ms IS NULL AND earlier.id < message.id
  )
ORDER BY message.id LIMIT 1 {alone}

-- name: sent
UPDATE holdfast_guard_outbox SET sent_ms = {now}, attempts = attempts + 1, last_error = NULL WHERE id = :id

-- name: failed
UPDATE holdfast_guard_outbox
SET attempts = attempts + 1, refusals = refusals + :refusals, last_error = :error, due_ms = {now} + :delay_ms
WHERE id = :id

-- name: park
UPDATE holdfast_guard_outbox SET parked_ms = {now} WHERE id = :id

-- name: parked
SELECT * FROM holdfast_guard_outbox WHERE parked_ms IS NOT NULL AND sent_ms IS NULL ORDER BY id LIMIT :limit

-- name: retry
UPDATE holdfast_guard_outbox SET parked_ms = NULL, refusals = 0, due_ms = {now}
WHERE message_id = :message_id AND parked_ms IS NOT NULL AND sent_ms IS NULL RETURNING id

-- name: discard
DELETE FROM holdfast_guard_outbox
WHERE message_id = :message_id AND parked_ms IS NOT NULL AND sent_ms IS NULL RETURNING id

-- name: sweep
DELETE FROM holdfast_guard_outbox
WHERE id IN (SELECT id FROM holdfast_guard_outbox WHERE sent_ms < {now} - :age_ms ORDER BY sent_ms LIMIT :limit)
RETURNING id

-- name: backlog
SELECT count(*) FILTER (WHERE parked_ms IS NULL) AS waiting, count(*) FILTER (WHERE parked_ms IS NOT NULL) AS parked,
  {now} - min(made_ms) AS oldest_ms
FROM holdfast_guard_outbox WHERE sent_ms IS NULL

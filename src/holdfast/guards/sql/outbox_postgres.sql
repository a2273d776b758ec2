-- Contract: makes the outbox, if it is not there yet, in the first schema of the search path; the fence ledger
-- (ledger_postgres.sql) is made beside it. One row for each message that was added in a transaction. Times are
-- milliseconds since 1970 on the database's clock. `id` rises in the order in which the transactions of one key were
-- committed. A row is waiting until it has `sent_ms`; one with `parked_ms` is not tried any more. `attempts` counts all
-- tries, `refusals` those that failed because of the message.
CREATE TABLE IF NOT EXISTS holdfast_guard_outbox (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id TEXT NOT NULL UNIQUE,
    key        TEXT NOT NULL,
    fence      BIGINT NOT NULL CHECK (fence >= 0),
    topic      TEXT NOT NULL,
    headers    TEXT NOT NULL,
    body       BYTEA NOT NULL,
    made_ms    BIGINT NOT NULL,
    due_ms     BIGINT NOT NULL,
    sent_ms    BIGINT,
    parked_ms  BIGINT,
    attempts   INTEGER NOT NULL DEFAULT 0,
    refusals   INTEGER NOT NULL DEFAULT 0,
    last_error TEXT
);
CREATE INDEX IF NOT EXISTS holdfast_guard_outbox_waiting ON holdfast_guard_outbox (id) WHERE sent_ms IS NULL;
CREATE INDEX IF NOT EXISTS holdfast_guard_outbox_of_key ON holdfast_guard_outbox (key, id) WHERE sent_ms IS NULL;
CREATE INDEX IF NOT EXISTS holdfast_guard_outbox_sent ON holdfast_guard_outbox (sent_ms) WHERE sent_ms IS NOT NULL

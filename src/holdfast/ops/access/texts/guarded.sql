-- $table, and the fences beside it.
GRANT USAGE ON SCHEMA $home TO $writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON $table, $ledger TO $writer;

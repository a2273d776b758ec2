-- Contract: what this server, database and role are set to, as one row. Reads only, and needs no right but to connect.
-- What a role may not see is NULL; what this version does not have, too. Times are milliseconds.
SELECT
    current_setting('server_version_num'),
    pg_backend_pid(),
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
    current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'),
    (SELECT setting FROM pg_settings WHERE name = 'statement_timeout'),
    (SELECT setting FROM pg_settings WHERE name = 'transaction_timeout'),
    (SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'),
    -- Sessions that ordinary roles may still open: on the server, in the database, and for the role.
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true), '0')::integer
        - (SELECT sum(numbackends) FROM pg_stat_database),
    (SELECT CASE WHEN datconnlimit >= 0 THEN datconnlimit - numbackends END
        FROM pg_database JOIN pg_stat_database USING (datname) WHERE datname = current_database()),
    (SELECT CASE WHEN rolconnlimit >= 0
            THEN rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usename = rolname) END
        FROM pg_roles WHERE rolname = session_user),
    -- What is missing for the role, if anything.
    CASE
        WHEN to_regnamespace({text}) IS NULL AND has_database_privilege(current_database(), 'CREATE') THEN ''
        WHEN to_regnamespace({text}) IS NULL THEN 'CREATE on the database, for the schema does not exist'
        WHEN NOT has_schema_privilege(to_regnamespace({text}), 'USAGE') THEN 'USAGE on the schema'
        WHEN NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace({text}) AND relname = 'holdfast_lease')
            AND NOT has_schema_privilege(to_regnamespace({text}), 'CREATE') THEN 'CREATE on the schema, for it is empty'
        ELSE (
            SELECT coalesce(string_agg(format('%s on %s', wanted, relname), ', ' ORDER BY relname, wanted), '')
            FROM pg_class, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted
            WHERE relnamespace = to_regnamespace({text})
                AND relname IN ('holdfast_lease', 'holdfast_fence', 'holdfast_waiter')
                AND NOT has_table_privilege(pg_class.oid, wanted)
        )
    END

-- Roles for a plane in this database. Run it with psql as a superuser; it may be run again.
--
-- $owner_text creates the tables (and changes them at an upgrade), $plane_text writes their rows,
-- $reader_text reads them. All three may log in, and have no password until you set one. The schema is for the
-- plane alone: the roles own everything in it.
DO $$$$
DECLARE
  each text;
BEGIN
  FOREACH each IN ARRAY ARRAY[$owner_text, $plane_text, $reader_text] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = each) THEN
      EXECUTE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', each);
    END IF;
    EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = %I', each, current_database(), $schema_text);
  END LOOP;
END $$$$;
CREATE SCHEMA IF NOT EXISTS $schema;
REVOKE ALL ON SCHEMA $schema FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA $schema TO $owner;
GRANT USAGE ON SCHEMA $schema TO $plane, $reader;
-- For existing tables, and for those that the owner will create.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $schema TO $plane;
GRANT SELECT ON ALL TABLES IN SCHEMA $schema TO $reader;
ALTER DEFAULT PRIVILEGES FOR ROLE $owner IN SCHEMA $schema
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO $plane;
ALTER DEFAULT PRIVILEGES FOR ROLE $owner IN SCHEMA $schema GRANT SELECT ON TABLES TO $reader;

-- A writer of guarded tables: of their rows and the fences beside them, not of their triggers or columns, nor of other
-- tables. Run it as a superuser after the guards were installed; it may be run again.
DO $$$$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = $writer_text) THEN
    CREATE ROLE $writer LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
  END IF;
END $$$$;

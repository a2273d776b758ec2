-- Who writes to guarded tables: their rows, and the fences beside them. Not their triggers or columns, and no others.
-- Run it after the guards were installed, as a superuser, as often as you like.
DO $$$$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = $writer_text) THEN
    CREATE ROLE $writer LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
  END IF;
END $$$$;

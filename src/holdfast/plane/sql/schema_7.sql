-- Contract: changes the tables of the plane's state from version 6 to 7: the history of a job has the end of the traceback of each
-- failed attempt. Older code writes and reads the table without it. Run once, in one transaction.

ALTER TABLE plane_event ADD COLUMN traceback TEXT;

-- Contract: the value that the plane has stored under `:name`; no row: none.
SELECT value FROM plane_meta WHERE name = :name

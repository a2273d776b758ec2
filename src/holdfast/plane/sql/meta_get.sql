-- Contract: returns what the plane has written down about itself under `:name`; no row: nothing.
SELECT value FROM plane_meta WHERE name = :name

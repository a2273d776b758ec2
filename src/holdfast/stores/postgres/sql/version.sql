-- Contract: format and version of the tables. Fails where there are none. Reads only.
SELECT name, value FROM {schema}.holdfast_meta WHERE name IN ('format', 'schema')

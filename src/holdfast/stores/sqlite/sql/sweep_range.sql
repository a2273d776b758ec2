-- Contract: the last of the next `:most` keys behind `:after`, and how many they are.
SELECT max(key), count(*) FROM (SELECT key FROM holdfast_lease WHERE key > :after ORDER BY key LIMIT :most)

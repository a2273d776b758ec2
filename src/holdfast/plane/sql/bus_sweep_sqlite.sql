-- Contract: deletes some messages that were finished long ago; returns one row for each.
DELETE FROM plane_message
WHERE rowid IN (SELECT rowid FROM plane_message WHERE state = 2 AND due_ns <= :now_ns ORDER BY due_ns LIMIT :most)
RETURNING 1 AS gone

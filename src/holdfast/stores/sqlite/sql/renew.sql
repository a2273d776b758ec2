-- Contract: sets a new expiry for one lease if the token still has it and it has not expired. Changes one row or none.
-- From then on the lease ends with the process that renewed it, unless it ends with none.
-- Parameters by position, because thousands of these run in one batch and names would double its cost: new expiry, new
-- wall-clock expiry, our clock, our process; key, token; our clock, now on it, now on the wall clock.
UPDATE holdfast_lease SET
    expires_ns = ?, expires_wall_ns = ?, clock = ?, process = CASE process WHEN '' THEN '' ELSE ? END
WHERE key = ? AND token = ? AND CASE WHEN clock = ? THEN expires_ns > ? ELSE expires_wall_ns > ? END

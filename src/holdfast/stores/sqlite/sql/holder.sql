-- Contract: the row of `:key`, alive or not; the reader judges.
SELECT token, fence, owner, clock, process, expires_ns, expires_wall_ns FROM holdfast_lease WHERE key = :key

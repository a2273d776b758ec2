-- Contract: grants `:key` to `:token` and returns the fence, or changes nothing and returns no row.
-- Granted when the key is free, when its lease expired on our own clock, or when the same token asks again: then the
-- fence stays and only the expiry is new. Leases on other clocks, and those of dead processes, are not judged here.
-- `:now_ns` may be older than the moment at which this runs (it may wait for the write lock): that errs towards "busy",
-- and gives a lease that ends sooner, never later, than its holder believes.
INSERT INTO holdfast_lease
    (key, token, fence, owner, family, granted_wall_ns, expires_ns, expires_wall_ns, clock, process)
VALUES
    (:key, :token, (SELECT max(value + 1, :fence_floor) FROM holdfast_fence), :owner, :family, :wall_ns,
     :expires_ns, :expires_wall_ns, :clock, :process)
ON CONFLICT (key) DO UPDATE SET
    fence = CASE WHEN token = excluded.token AND clock = excluded.clock AND expires_ns > :now_ns
                 THEN fence ELSE excluded.fence END,
    granted_wall_ns = CASE WHEN token = excluded.token AND clock = excluded.clock AND expires_ns > :now_ns
                           THEN granted_wall_ns ELSE excluded.granted_wall_ns END,
    token = excluded.token,
    owner = excluded.owner,
    family = excluded.family,
    expires_ns = excluded.expires_ns,
    expires_wall_ns = excluded.expires_wall_ns,
    clock = excluded.clock,
    process = excluded.process
WHERE token = excluded.token OR (clock = excluded.clock AND expires_ns <= :now_ns)
RETURNING fence

-- Contract: makes somebody a holder. The slot is held, and what stood in the way is gone.
INSERT INTO plane_resource_lock (tenant, resource, token, slot, mode, owner, fence, granted_ns, expires_ns)
VALUES (:tenant, :resource, :token, :slot, :mode, :owner, :fence, :now_ns, :expires_ns)

-- Contract: inserts a holder. The transaction has locked the slot and removed expired holders.
INSERT INTO plane_resource_lock (tenant, resource, token, slot, mode, owner, fence, granted_ns, expires_ns)
VALUES (:tenant, :resource, :token, :slot, :mode, :owner, :fence, :now_ns, :expires_ns)

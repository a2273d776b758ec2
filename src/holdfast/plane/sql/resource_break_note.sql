-- Contract: keeps for good from whom an operator took a resource, who did it, and why.
INSERT INTO plane_resource_break (id, at_ns, tenant, resource, mode, owner, fence, actor, reason)
VALUES (:id, :at_ns, :tenant, :resource, :mode, :owner, :fence, :actor, :reason)

-- Contract: inserts the audit record of a forced release: holder, operator and reason. It is kept forever.
INSERT INTO plane_resource_break (id, at_ns, tenant, resource, mode, owner, fence, actor, reason)
VALUES (:id, :at_ns, :tenant, :resource, :mode, :owner, :fence, :actor, :reason)

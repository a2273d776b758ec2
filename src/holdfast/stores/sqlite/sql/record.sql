-- Contract: appends one audit record.
INSERT INTO holdfast_audit (wall_ns, action, key, actor, reason, previous_owner, previous_fence, fence)
VALUES (:wall_ns, :action, :key, :actor, :reason, :previous_owner, :previous_fence, :fence)

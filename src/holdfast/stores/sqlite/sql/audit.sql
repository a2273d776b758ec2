-- Contract: the newest `:limit` audit records, newest first.
SELECT wall_ns, action, key, actor, reason, previous_owner, previous_fence, fence
FROM holdfast_audit ORDER BY id DESC LIMIT :limit

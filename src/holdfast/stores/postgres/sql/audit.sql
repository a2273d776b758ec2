-- Contract: the newest $1 audit records, newest first. Reads only.
SELECT (extract(epoch FROM at) * 1000000)::bigint, action, key, actor, reason, previous_owner, previous_fence, fence
FROM {schema}.holdfast_audit ORDER BY id DESC LIMIT $1

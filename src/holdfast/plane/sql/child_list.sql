-- Contract: the children of a job that exist, oldest first, at most `:most` of them.
SELECT link.child, link.detached, job.state FROM plane_child AS link JOIN plane_job AS job ON job.id = link.child
WHERE link.parent = :parent AND link.made_ns = :made_ns
ORDER BY link.at_ns, link.child LIMIT :most

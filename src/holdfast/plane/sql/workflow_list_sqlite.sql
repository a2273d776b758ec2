-- Contract: a page of the newest definitions that a tenant can see (all: an empty tenant), in outline, by scope and name. The
-- database looks into the bodies for what an outline has of them; they stay where they are.
SELECT scope, name, version, COALESCE(json_extract(body, '$.risk'), 'low') AS risk,
    (SELECT COUNT(*) FROM json_each(body, '$.steps')) AS steps,
    SUBSTR(COALESCE(json_extract(body, '$.description'), ''), 1, 201) AS description, digest, created_ns, created_by
FROM plane_workflow AS mine
WHERE (:tenant = '' OR scope IN (:tenant, '*')) AND (scope > :scope OR (scope = :scope AND name > :name))
    AND version = (SELECT MAX(version) FROM plane_workflow WHERE scope = mine.scope AND name = mine.name)
ORDER BY scope, name LIMIT :most

-- Contract: a page of outlines of the newest definitions that a tenant sees (an empty tenant: all), by scope and name. A body is
-- read only if an older process stored it without its outline (risk, number of steps, description).
SELECT scope, name, version, digest, created_ns, created_by, COALESCE(outline, CAST(json_build_array(
        COALESCE(CAST(body AS json) ->> 'risk', 'low'), (SELECT COUNT(*) FROM json_object_keys(CAST(body AS json) -> 'steps')),
        SUBSTR(COALESCE(CAST(body AS json) ->> 'description', ''), 1, 201)
    ) AS text)) AS outline
FROM plane_workflow AS mine
WHERE (:tenant = '' OR scope IN (:tenant, '*')) AND (scope > :scope OR (scope = :scope AND name > :name))
    AND version = (SELECT MAX(version) FROM plane_workflow WHERE scope = mine.scope AND name = mine.name)
ORDER BY scope, name LIMIT :most

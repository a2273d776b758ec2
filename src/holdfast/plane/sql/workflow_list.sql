-- Contract: a page of the newest definitions that a tenant can see (all: an empty tenant), by scope and name.
SELECT * FROM plane_workflow AS mine
WHERE (:tenant = '' OR scope IN (:tenant, '*')) AND (scope > :scope OR (scope = :scope AND name > :name))
    AND version = (SELECT MAX(version) FROM plane_workflow WHERE scope = mine.scope AND name = mine.name)
ORDER BY scope, name LIMIT :most

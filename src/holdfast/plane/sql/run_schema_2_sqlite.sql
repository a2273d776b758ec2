-- Contract: migrates the tables of workflows and runs from version 1 to 2: outlines are stored next to definitions and documents,
-- so lists do not read whole documents. Definitions get their outlines here, because they stay. Runs get theirs with their
-- next write: there may be gigabytes of them, and they are deleted in the end. Run once, in one transaction.

ALTER TABLE plane_workflow ADD COLUMN outline TEXT;
ALTER TABLE plane_run ADD COLUMN outline TEXT;
ALTER TABLE plane_run ADD COLUMN outlined BIGINT;

UPDATE plane_workflow SET outline = json_array(
    COALESCE(json_extract(body, '$.risk'), 'low'),
    (SELECT COUNT(*) FROM json_each(body, '$.steps')),
    SUBSTR(COALESCE(json_extract(body, '$.description'), ''), 1, 201)
);

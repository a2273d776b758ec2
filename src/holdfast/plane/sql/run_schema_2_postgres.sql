-- Contract: leads the tables of workflows and their runs from version 1 to 2: what lists have of a definition or a run is kept beside
-- it, so that nobody has to look into the whole of each. Definitions get it here, for they stay. Runs get it when they are next
-- written, for there may be gigabytes of them, and they are forgotten in the end. Run once, in one transaction.

ALTER TABLE plane_workflow ADD COLUMN outline TEXT;
ALTER TABLE plane_run ADD COLUMN outline TEXT;
ALTER TABLE plane_run ADD COLUMN outlined BIGINT;

UPDATE plane_workflow SET outline = CAST(json_build_array(
    COALESCE(CAST(body AS json) ->> 'risk', 'low'),
    (SELECT COUNT(*) FROM json_object_keys(CAST(body AS json) -> 'steps')),
    SUBSTR(COALESCE(CAST(body AS json) ->> 'description', ''), 1, 201)
) AS text);

-- Contract: migrates the tables of the error policy from version 1 to 2: settings that are switched at run time. Run once,
-- in one transaction.

CREATE TABLE plane_policy_setting (
    revision BIGINT NOT NULL PRIMARY KEY,
    name     TEXT NOT NULL,
    before   TEXT NOT NULL,
    after    TEXT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    source   TEXT NOT NULL,
    at_ns    BIGINT NOT NULL
);

CREATE INDEX plane_policy_setting_of_name ON plane_policy_setting (name, revision);

-- Contract: stores `:value` under `:name`, unless there is a value.
INSERT INTO plane_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING

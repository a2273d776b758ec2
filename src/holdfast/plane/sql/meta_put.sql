-- Contract: stores `:value` under `:name`, and replaces an earlier value.
INSERT INTO plane_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value

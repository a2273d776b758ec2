-- Contract: writes `:value` down under `:name`, unless something stands there.
INSERT INTO plane_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING

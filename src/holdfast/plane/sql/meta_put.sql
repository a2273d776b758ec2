-- Contract: writes `:value` down under `:name`, in place of what stands there.
INSERT INTO plane_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- Contract: the next sweep, of whichever process, begins behind `:place`; '': at the first key.
INSERT INTO holdfast_meta (name, value) VALUES ('swept', :place) ON CONFLICT (name) DO UPDATE SET value = excluded.value

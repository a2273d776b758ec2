-- Contract: says anew when a run is to be looked at by itself, and leaves it as it is otherwise.
UPDATE plane_run SET wake_ns = :wake_ns WHERE id = :id AND version = :version

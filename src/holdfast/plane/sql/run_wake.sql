-- Contract: sets the time of a run's next automatic check, and nothing else.
UPDATE plane_run SET wake_ns = :wake_ns WHERE id = :id AND version = :version

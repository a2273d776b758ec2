-- Contract: inserts an entry of a run's timeline.
INSERT INTO plane_run_event (run, version, line, at_ns, step, kind, detail, attempt, fence, actor)
VALUES (:run, :version, :line, :at_ns, :step, :kind, :detail, :attempt, :fence, :actor)

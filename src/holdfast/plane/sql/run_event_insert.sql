-- Contract: adds a line to the timeline of a run.
INSERT INTO plane_run_event (run, version, line, at_ns, step, kind, detail, attempt, fence, actor)
VALUES (:run, :version, :line, :at_ns, :step, :kind, :detail, :attempt, :fence, :actor)

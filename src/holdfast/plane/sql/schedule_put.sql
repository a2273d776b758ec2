-- Contract: writes a schedule, and returns it; no row: another process has written it since it was read as the version before.
INSERT INTO plane_schedule
    (tenant, name, spec, author, app, declared, paused, paused_by, paused_reason, paused_ns, done_ns, queued_ns, next_ns, submit_ns,
     last_due_ns, last_fired_ns, last_job, problem, fired, skipped, missed, created_ns, updated_ns, updated_by, version)
VALUES
    (:tenant, :name, :spec, :author, :app, :declared, :paused, :paused_by, :paused_reason, :paused_ns, :done_ns, :queued_ns, :next_ns,
     :submit_ns, :last_due_ns, :last_fired_ns, :last_job, :problem, :fired, :skipped, :missed, :created_ns, :updated_ns,
     :updated_by, :version)
ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec, author = excluded.author,
    app = excluded.app, declared = excluded.declared,
    paused = excluded.paused, paused_by = excluded.paused_by, paused_reason = excluded.paused_reason,
    paused_ns = excluded.paused_ns, done_ns = excluded.done_ns, queued_ns = excluded.queued_ns, next_ns = excluded.next_ns,
    submit_ns = excluded.submit_ns, last_due_ns = excluded.last_due_ns, last_fired_ns = excluded.last_fired_ns,
    last_job = excluded.last_job, problem = excluded.problem, fired = excluded.fired, skipped = excluded.skipped,
    missed = excluded.missed, updated_ns = excluded.updated_ns, updated_by = excluded.updated_by, version = excluded.version
WHERE plane_schedule.version = excluded.version - 1
RETURNING version

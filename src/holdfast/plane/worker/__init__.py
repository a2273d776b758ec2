"""A worker: fetch, run, report, drain."""

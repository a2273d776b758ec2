"""Tools for operators: alert rules, dashboards, tuning and runbooks, all generated from the plane's declarations."""

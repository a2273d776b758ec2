"""What operators use: alert rules, dashboards, tuning and runbooks, all made from what the plane declares."""

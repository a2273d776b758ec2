"""Jobs: their rules, rows, changes, queries and quotas."""

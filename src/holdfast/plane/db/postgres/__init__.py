"""The control plane's database on PostgreSQL."""

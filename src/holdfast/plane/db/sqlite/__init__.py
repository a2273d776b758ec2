"""The control plane's database in a SQLite file."""

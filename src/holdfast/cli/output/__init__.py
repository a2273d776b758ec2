"""Output of commands: tables, JSON and live views."""

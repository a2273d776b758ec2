"""Commands of an administrator: workers, tenants, API tokens and settings."""

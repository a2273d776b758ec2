"""What a history says about TTLs and retry delays. Pure."""

"""The plane over HTTP. `api.create_app` makes the application; it decides nothing that the shell could not."""

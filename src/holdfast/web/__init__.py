"""The plane over HTTP. `app.create_app` makes the application; it can do nothing that the command line cannot."""

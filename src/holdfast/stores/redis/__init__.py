"""The store on one Redis server."""

"""The store on several independent Redis servers."""

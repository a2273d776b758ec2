"""The decisions about runs and definitions. Pure."""

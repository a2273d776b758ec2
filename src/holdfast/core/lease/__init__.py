"""The decisions about one lease: its states, its times, its losses. Pure."""

"""The message bus in the control plane's own database."""

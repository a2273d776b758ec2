"""What every HTTP request passes through."""

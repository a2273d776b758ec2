"""Background loops with one leader each."""

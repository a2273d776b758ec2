"""`holdfast run`: a child process under a lease."""

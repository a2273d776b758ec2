"""What a program holds: the lock specification, the lease and its view, shared by both colors."""

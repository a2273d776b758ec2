"""The client of a plane for applications: submit jobs, wait for them, watch them."""

"""Long series of simulated worlds: processes, progress, totals and the file to continue from."""

"""The engines that keep leases, one file each; `registry` picks one by URL and imports no other."""

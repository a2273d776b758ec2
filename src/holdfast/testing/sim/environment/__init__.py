"""The simulated environment: event loop, hosts, clocks, network and store on virtual time."""

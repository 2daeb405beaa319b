"""The service: sockets, TLS, processes, and the bounds on what a peer may do."""

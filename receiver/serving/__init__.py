"""The service: sockets, TLS, processes, and what an unfriendly peer does to a connection."""

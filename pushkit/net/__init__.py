"""The network: which destinations are allowed, and how they are reached."""

"""Deliveries: what is still to be posted, and what became of it."""

"""The inbox: what was accepted, and what became of it."""

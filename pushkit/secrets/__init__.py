"""Secrets at rest: the keys that seal them, and the columns that hold them."""

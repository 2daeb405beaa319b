"""Outgoing HTTP: which destinations are allowed, and how requests reach them."""

"""Secrets at rest: the keys they are sealed with, and what is sealed."""

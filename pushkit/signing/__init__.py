"""Signatures over notifications: each module signs and verifies."""

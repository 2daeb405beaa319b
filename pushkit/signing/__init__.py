"""Signatures over notifications, sign and verify side by side."""

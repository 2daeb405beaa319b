"""Signing keys: their states over time, the key file, and the published JWK Set."""

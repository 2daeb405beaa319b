"""Signing keys: their life, the file they are kept in, and the JWK Set they are published as."""

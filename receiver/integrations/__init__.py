"""Adapters to the SDKs that clients use."""

"""Adapters to what agents are built with."""

"""Adapters to the frameworks that agents are built with."""

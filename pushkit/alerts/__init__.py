"""Alerts about faults, sent to operators at a limited rate."""

"""Alerts: what somebody should look at, sent somewhere, and not a thousand times."""

"""From an accepted notification to the client's own code."""

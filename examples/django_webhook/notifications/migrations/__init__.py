"""Its tables over time."""

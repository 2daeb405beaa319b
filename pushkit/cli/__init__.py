"""The `pushkit` command."""

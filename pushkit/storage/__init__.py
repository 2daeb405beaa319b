"""One small interface over both databases: scripts of statements, run by a driver."""

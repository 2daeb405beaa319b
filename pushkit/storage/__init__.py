"""One small face over the databases: statements in scripts, run by a driver."""

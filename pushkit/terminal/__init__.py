"""Shared by the commands of both packages: options, output, processes, databases and TOML."""

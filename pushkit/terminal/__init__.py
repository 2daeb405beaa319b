"""What the commands of both packages share: how they are called, write, run and read TOML."""

"""The memory of accepted ids, which refuses replays."""

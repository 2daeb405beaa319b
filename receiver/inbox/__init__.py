"""The inbox: the accepted notifications and their states."""

"""Who wants to hear of which task, and where."""

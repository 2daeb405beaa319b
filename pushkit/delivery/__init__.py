"""From a task update to a settled delivery."""

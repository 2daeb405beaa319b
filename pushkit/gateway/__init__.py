"""A gateway in front of an agent, which gives it durable, signed push notifications."""

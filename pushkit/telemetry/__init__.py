"""What operators look at: metrics, health, traces. All of it listens to `pushkit.events`."""

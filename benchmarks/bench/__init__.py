"""How many deliveries a second, at what cost and latency, beside the SDKs' own senders."""

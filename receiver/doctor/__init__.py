"""`doctor`: examines a webhook receiver from outside, or a sender by webhooks that misbehave."""

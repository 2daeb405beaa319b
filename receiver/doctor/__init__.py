"""`doctor`: examines a webhook receiver from outside, or a sender by a webhook that misbehaves."""

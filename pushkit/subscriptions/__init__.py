"""Subscriptions: who wants updates of which task, and at which webhook."""

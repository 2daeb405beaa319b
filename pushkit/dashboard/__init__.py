"""The sender's dashboard: pages and a JSON API over the outbox. Needs the extra `dashboard`."""

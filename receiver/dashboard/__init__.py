"""The receiver's dashboard: pages and a JSON API over the inbox. Needs the extra `dashboard`."""

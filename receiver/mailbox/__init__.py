"""Mailboxes: notifications for clients that cannot be called (docs/extensions/mailbox.md)."""

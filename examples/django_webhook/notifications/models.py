"""What was accepted."""

from __future__ import annotations

from django.db import models


class Notification(models.Model):
    """One accepted notification; the constraint is what makes a retry a duplicate."""

    sender = models.TextField()
    delivery_id = models.TextField()
    body_sha256 = models.CharField(max_length=64)
    task_id = models.TextField(null=True)
    body = models.BinaryField()
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """One delivery, one row."""

        constraints = (
            models.UniqueConstraint(fields=["sender", "delivery_id"], name="one_row_a_delivery"),
        )

"""The table of notifications."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Notification",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False)),
                ("sender", models.TextField()),
                ("delivery_id", models.TextField()),
                ("body_sha256", models.CharField(max_length=64)),
                ("task_id", models.TextField(null=True)),
                ("body", models.BinaryField()),
                ("received_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.AddConstraint(
            model_name="notification",
            constraint=models.UniqueConstraint(
                fields=["sender", "delivery_id"], name="one_row_a_delivery"
            ),
        ),
    )

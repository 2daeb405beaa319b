"""Django's command line.

python examples/django_webhook/manage.py migrate
python examples/django_webhook/manage.py runserver --noreload 127.0.0.1:9000
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)

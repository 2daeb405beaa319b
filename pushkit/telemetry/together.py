"""Lets several processes of one service count together, in files of a shared folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Final

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client's word


@contextlib.contextmanager
def counted_together() -> Iterator[None]:
    """Let processes started in this context count together; keeps a folder that is set already."""
    if os.environ.get(DIRECTORY):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pushkit-metrics-") as folder:
        os.environ[DIRECTORY] = folder
        try:
            yield
        finally:
            del os.environ[DIRECTORY]

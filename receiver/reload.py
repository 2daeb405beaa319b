"""Reloads the trusted senders without a restart: on SIGHUP, and when one of their files changes.

Wrong settings are logged and change nothing: the service continues with the current senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from pushkit.errors import ConfigError
from pushkit.keys.files import fingerprint
from receiver.receiver import Receiver
from receiver.settings import ReceiverSettings, load_settings

_log = logging.getLogger("receiver")

_POLL = timedelta(seconds=2)


class SettingsWatcher:
    """Watches a configuration file, and the files of tokens, secrets and keys that it names.

    The receiver was built from these settings; `poll` is how often the files are checked.
    """

    def __init__(
        self, receiver: Receiver, settings: ReceiverSettings, *, poll: timedelta = _POLL
    ) -> None:
        self._receiver = receiver
        self._started_from = settings
        self._poll = poll
        self._hangup = asyncio.Event()
        self._files = _files_of(settings)
        self._seen = self._fingerprints()

    def hang_up(self) -> None:
        """Reload soon, whether a file has changed or not: called on SIGHUP."""
        self._hangup.set()

    async def run(self) -> None:
        """Reload whenever it is due, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll.total_seconds()):
                    await self._hangup.wait()
            await self.run_once()

    async def run_once(self) -> None:
        """Reload if there was a SIGHUP or a file has changed since the last check."""
        if not self._hangup.is_set() and self._fingerprints() == self._seen:
            return
        self._hangup.clear()
        try:
            await self.reload()
        except ConfigError as exc:
            # The message names the line, and never a secret; a traceback might.
            _log.error("the senders trusted before stay in use: %s", exc)

    async def reload(self) -> None:
        """Read the settings again, and trust their senders.

        Raises:
            ConfigError: The settings are wrong; nothing has changed.
        """
        # Before the files are read: a write during the reading counts as another change.
        before = self._seen = self._fingerprints()
        settings = load_settings(self._started_from.path)
        # Including newly named files: one of them may be written after the configuration.
        self._files = _files_of(settings)
        self._seen = {path: before.get(path, at) for path, at in self._fingerprints().items()}
        await self._receiver.reload_senders(settings.trusted_senders())
        old, new = self._started_from.document(), settings.document()
        if waiting := sorted(name for name in new.keys() - {"senders"} if old[name] != new[name]):
            _log.warning("changed, but only a restart applies it: %s", ", ".join(waiting))
        _log.warning("reloaded; trusting %s", ", ".join(sorted(self._receiver.senders)))

    def _fingerprints(self) -> dict[Path, tuple[int, ...] | None]:
        return {path: fingerprint(path) for path in self._files}


def _files_of(settings: ReceiverSettings) -> list[Path]:
    """Return the files that define the senders: the configuration, and those that it names."""
    return [settings.path, *(file for sender in settings.senders for file in sender.files)]


@contextlib.asynccontextmanager
async def watching(
    receiver: Receiver, settings: ReceiverSettings, *, poll: timedelta = _POLL
) -> AsyncIterator[SettingsWatcher]:
    """Watch the configuration while a service runs.

    The service handles signals itself: its handler of SIGHUP calls `hang_up`.
    """
    watcher = SettingsWatcher(receiver, settings, poll=poll)
    task = asyncio.create_task(watcher.run(), name="receiver-reload")
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

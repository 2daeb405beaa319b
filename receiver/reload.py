"""New trust settings without a restart: on SIGHUP, and when one of their files has changed.

What is wrong is reported and changes nothing: the service goes on with what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from pushkit.errors import ConfigError
from pushkit.keys.source import fingerprint
from receiver.receiver import Receiver
from receiver.settings import ReceiverSettings, load_settings

_log = logging.getLogger("receiver")

_POLL = timedelta(seconds=2)
_LIVE = frozenset({"senders"})


class SettingsWatcher:
    """Follows a configuration file, and the files of tokens, secrets and keys that it names.

    The receiver was built from these settings; `poll` is how often the files are looked at.
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
        """Reload soon, whether a file has changed or not: what SIGHUP does."""
        self._hangup.set()

    async def run(self) -> None:
        """Reload whenever there is reason to, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll.total_seconds()):
                    await self._hangup.wait()
            await self.run_once()

    async def run_once(self) -> None:
        """Reload if there was a SIGHUP or a file has changed since the last look."""
        if not self._hangup.is_set() and self._fingerprints() == self._seen:
            return
        self._hangup.clear()
        try:
            await self.reload()
        except ConfigError as exc:
            # The message, without its traceback: it says which line, and never a secret.
            _log.error("the senders trusted before stay in use: %s", exc)

    async def reload(self) -> None:
        """Read everything again, and trust the senders that stand there now.

        Raises:
            ConfigError: Something is wrong; nothing has changed.
        """
        # Before the files are read: what is written meanwhile is a change again.
        before = self._seen = self._fingerprints()
        settings = load_settings(self._started_from.path)
        # Files that are named only now, too: one of them may be written later than its name.
        self._files = _files_of(settings)
        self._seen = {path: before.get(path, at) for path, at in self._fingerprints().items()}
        await self._receiver.reload_senders(settings.trusted_senders())
        if waiting := _changed(self._started_from, settings):
            _log.warning("changed, but only a restart applies it: %s", ", ".join(waiting))
        _log.warning("reloaded; trusting %s", ", ".join(sorted(self._receiver.senders)))

    def _fingerprints(self) -> dict[Path, tuple[int, ...] | None]:
        return {path: fingerprint(path) for path in self._files}


def _files_of(settings: ReceiverSettings) -> list[Path]:
    """Return the files that trust stands in: the configuration, and those that it names."""
    named = [
        settings.folder / name
        for sender in settings.senders
        for name in (
            sender.tokens_file,
            sender.webhook_secrets_file,
            sender.jwks_file,
            sender.card,
        )
        if name is not None
    ]
    return [settings.path, *named]


def _changed(before: ReceiverSettings, after: ReceiverSettings) -> list[str]:
    """Return the settings that differ and are not live."""
    old, new = before.model_dump(exclude=set(_LIVE)), after.model_dump(exclude=set(_LIVE))
    return sorted(name for name in new if old[name] != new[name])


@contextlib.asynccontextmanager
async def watching(
    receiver: Receiver, settings: ReceiverSettings, *, poll: timedelta = _POLL
) -> AsyncIterator[SettingsWatcher]:
    """Follow the configuration while a service runs.

    Signals are the service's own: its handler of SIGHUP calls the watcher's `hang_up`.
    """
    watcher = SettingsWatcher(receiver, settings, poll=poll)
    task = asyncio.create_task(watcher.run(), name="receiver-reload")
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

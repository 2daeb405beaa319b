"""The receiver under examination: posted to over HTTP, observed and restarted by commands, if any.

Without `--observe`, each delivery that it answered 2xx counts as called back once: the best case.
The report names the checks that this leaves open.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pushkit.errors import ConfigError, TransportError
from pushkit.net.addresses import host_is_loopback
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.testing import Answer, ReceiverUnderTest

_COMMAND_TIMEOUT = timedelta(seconds=120)
_UP_TIMEOUT = timedelta(seconds=60)
_ECHO_TIMEOUT = timedelta(seconds=10)
_POST_TIMEOUT = timedelta(seconds=30)
_ANSWER_TIMEOUT = timedelta(seconds=5)
_PAUSE = 0.05


class Examined(ReceiverUnderTest):
    """A receiver at a URL.

    `observe` is a command that prints the delivery ids that were called back so far, one per line;
    `restart` is one that kills the receiver and starts it again on the same state.
    """

    def __init__(
        self,
        url: str,
        *,
        observe: str | None,
        restart: str | None,
        connections: ConnectionOptions | None = None,
    ) -> None:
        self.url = url
        self.connections = connections or ConnectionOptions()
        # The words of each command; none if it is not given.
        self.commands: dict[str, list[str]] = {
            "--restart": words_of("--restart", restart),
            "--observe": words_of("--observe", observe),
        }
        self._accepted: dict[str, None] = {}

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to the receiver's URL, whatever its target is."""
        async with closing(self.client()) as client:
            try:
                found = await client.post(
                    client.policy.check(self.url),
                    list(request.headers),
                    request.body,
                    timeout=_POST_TIMEOUT,
                )
            except TransportError:
                return None
        answer = Answer(status=found.status, body=found.body)
        if answer.accepted:
            self._accepted[request.headers.one("webhook-id") or ""] = None
        return answer

    @property
    def is_reached_directly(self) -> bool:
        """Whether connections lead to it without a proxy."""
        return self.connections.proxy is None or host_is_loopback(Url.parse(self.url).host)

    def client(self) -> Transport:
        """Return a client for its URL, which is the operator's choice."""
        return Transport(DestinationPolicy.naming(self.url), self.connections)

    async def unreachable(self) -> str | None:
        """Return why no HTTP answer arrives; None if one does, whatever it is."""
        async with closing(self.client()) as client:
            try:
                await client.get(client.policy.check(self.url), [], timeout=_ANSWER_TIMEOUT)
            except TransportError as exc:
                return str(exc)
        return None

    async def callbacks(self) -> Sequence[str]:
        """Return the delivery ids that were called back so far, or else those answered 2xx."""
        if not self.commands["--observe"]:
            return list(self._accepted)
        output = await _run("--observe", self.commands["--observe"])
        return [line.strip() for line in output.splitlines() if line.strip()]

    async def restart(self) -> None:
        """Restart it; return once it answers HTTP requests again."""
        await _run("--restart", self.commands["--restart"])
        try:
            async with asyncio.timeout(_UP_TIMEOUT.total_seconds()):
                # Not just a connection: a dying process may still accept some.
                while await self.unreachable():  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE)
        except TimeoutError as exc:
            seconds = _UP_TIMEOUT.total_seconds()
            raise ConfigError(
                f"--restart: {Url.parse(self.url).origin} did not answer within {seconds:g} s after"
                " the command"
            ) from exc


async def check_consent(subject: Examined, *, operated: bool) -> None:
    """Check that the receiver's operator consents to the examination.

    A receiver on this machine needs no consent; another one has to echo a token, unless the caller
    says that they operate it.

    Raises:
        ConfigError: The operator has not consented.
    """
    url = Url.parse(subject.url)
    if operated or host_is_loopback(url.host):
        return
    token = secrets.token_urlsafe(24)
    async with closing(subject.client()) as transport:
        destination = transport.policy.check(subject.url)
        asked = replace(destination, url=destination.url.with_query(f"validationToken={token}"))
        answer = await transport.get(asked, [], timeout=_ECHO_TIMEOUT)
        if answer.status == 200 and answer.body == token.encode():
            return
    raise ConfigError(
        f"{url.origin} is not on this machine, and does not echo a validationToken: if"
        " you operate it, add --i-operate-this; it will be sent hundreds of requests"
    )


async def check_reachable(subject: Examined) -> None:
    """Check that somebody answers at the receiver's URL. Raises ConfigError: nobody does."""
    if reason := await subject.unreachable():
        raise ConfigError(f"the receiver cannot be reached: {reason}")


def words_of(option: str, command: str | None) -> list[str]:
    """Split a command as a shell would. Raises ConfigError: an open quote, or no such command."""
    try:
        words = shlex.split(command or "")
    except ValueError as exc:
        raise ConfigError(f"{option}: a quote is not closed") from exc
    if words and "/" in words[0] and not Path(words[0]).is_file():
        raise ConfigError(f"{option}: no such command: {words[0]}")
    return words


def check_only(only: Collection[str], known: Collection[str]) -> None:
    """Check the names of `--only`. Raises ConfigError: one of them is unknown."""
    if unknown := sorted(set(only) - set(known)):
        raise ConfigError(f"--only: found {unknown[0]!r}, expected some of {', '.join(known)}")


async def _run(option: str, words: Sequence[str]) -> str:
    """Run a command; return what it printed. Raises ConfigError: it fails, or does not end."""
    # Not a pipe: processes that the command leaves running may keep its other end open.
    with tempfile.TemporaryFile() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=output
            )
        except OSError as exc:
            raise ConfigError(f"{option}: {words[0]}: {exc.strerror}") from exc
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT.total_seconds()):
                status = await process.wait()
        except TimeoutError as exc:
            process.kill()
            await process.wait()
            raise ConfigError(
                f"{option}: {words[0]} did not end within {_COMMAND_TIMEOUT.total_seconds():g} s:"
                " start the receiver in the background"
            ) from exc
        if status:
            raise ConfigError(f"{option}: {words[0]} ended with status {status}")
        output.seek(0)
        return output.read().decode("utf-8", "backslashreplace")

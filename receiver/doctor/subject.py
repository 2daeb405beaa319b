"""The receiver under examination: posted to over HTTP, observed and restarted by commands, if any.

Without `--observe`, each delivery that it answered 2xx counts as called back once: the best case.
The report names the checks that this leaves open.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import ssl
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pushkit.errors import ConfigError
from pushkit.net.addresses import host_is_loopback
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport, closing
from pushkit.terminal.listening import reason_of
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.testing import Answer, ReceiverUnderTest

_COMMAND_TIMEOUT = timedelta(seconds=120)
_UP_TIMEOUT = timedelta(seconds=60)
_ECHO_TIMEOUT = timedelta(seconds=10)
_ANSWER_TIMEOUT = timedelta(seconds=5)
_PAUSE = 0.05


class Examined(ReceiverUnderTest):
    """A receiver at a URL.

    `observe` is a command that prints the delivery ids that were called back so far, one per line;
    `restart` is one that kills the receiver and starts it again on the same state.
    """

    def __init__(self, url: str, *, observe: str | None, restart: str | None) -> None:
        self.url = url
        # The words of each command; none if it is not given.
        self.commands: dict[str, list[str]] = {
            "--restart": words_of("--restart", restart),
            "--observe": words_of("--observe", observe),
        }
        self._accepted: dict[str, None] = {}

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to the receiver's URL, whatever its target is."""
        answer = await super().post(replace(request, target=self.url))
        if answer is not None and answer.accepted:
            self._accepted[request.headers.one("webhook-id") or ""] = None
        return answer

    async def callbacks(self) -> Sequence[str]:
        """Return the delivery ids that were called back so far, or else those answered 2xx."""
        if not self.commands["--observe"]:
            return list(self._accepted)
        output = await _run("--observe", self.commands["--observe"])
        return [line.strip() for line in output.splitlines() if line.strip()]

    async def restart(self) -> None:
        """Restart it; return once it answers HTTP requests again."""
        await _run("--restart", self.commands["--restart"])
        url = Url.parse(self.url)
        try:
            async with asyncio.timeout(_UP_TIMEOUT.total_seconds()):
                while not await _answers(url):  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE)
        except TimeoutError as exc:
            seconds = _UP_TIMEOUT.total_seconds()
            raise ConfigError(
                f"--restart: {url.origin} did not answer within {seconds:g} s after the command"
            ) from exc


async def check_consent(url: str, *, operated: bool) -> None:
    """Check that the receiver's operator consents to the examination.

    A receiver on this machine needs no consent; another one has to echo a token, unless the caller
    says that they operate it.

    Raises:
        ConfigError: The operator has not consented.
    """
    if operated or host_is_loopback(Url.parse(url).host):
        return
    token = secrets.token_urlsafe(24)
    async with closing(Transport(DestinationPolicy.naming(url))) as transport:
        destination = transport.policy.check(url)
        asked = replace(destination, url=destination.url.with_query(f"validationToken={token}"))
        answer = await transport.get(asked, [], timeout=_ECHO_TIMEOUT)
        if answer.status == 200 and answer.body == token.encode():
            return
    raise ConfigError(
        f"{Url.parse(url).origin} is not on this machine, and does not echo a validationToken: if"
        " you operate it, add --i-operate-this; it will be sent hundreds of requests"
    )


async def check_reachable(url: str) -> None:
    """Check that somebody listens at the receiver's address. Raises ConfigError: nobody does."""
    parsed = Url.parse(url)
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT.total_seconds()):
            _, writer = await asyncio.open_connection(parsed.host.strip("[]"), parsed.port)
    except OSError as exc:  # a time-out is one
        reason = reason_of(exc) or "no answer"
        raise ConfigError(f"{parsed.origin} cannot be reached: {reason}") from exc
    writer.close()


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


async def _answers(url: Url) -> bool:
    """Return whether an HTTP answer arrives: a dying process may still accept connections."""
    tls = ssl.create_default_context() if url.scheme == "https" else None
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT.total_seconds()):
            reader, writer = await asyncio.open_connection(url.host.strip("[]"), url.port, ssl=tls)
            try:
                asked = f"GET {url.target} HTTP/1.1\r\nHost: {url.authority}\r\n\r\n"
                writer.write(asked.encode("ascii"))
                return bool(await reader.read(1))
            finally:
                writer.close()
    except OSError:  # a time-out is one
        return False

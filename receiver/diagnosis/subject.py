"""The receiver under test: posted to, observed and restarted, by code or by commands."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from pushkit.bounded_json import read_json_object
from pushkit.errors import ConfigError, MalformedJsonError, TransportError
from pushkit.net.addresses import host_is_loopback
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.refusals import REFUSALS, steps_said

_COMMAND_TIMEOUT = timedelta(seconds=120)
_UP_TIMEOUT = timedelta(seconds=60)
_ECHO_TIMEOUT = timedelta(seconds=10)
_POST_TIMEOUT = timedelta(seconds=30)
_ANSWER_TIMEOUT = timedelta(seconds=5)
_PAUSE = 0.05
_DIRECT = ConnectionOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A receiver's answer to a request."""

    status: int
    body: bytes = field(repr=False)

    @property
    def accepted(self) -> bool:
        """Whether a sender would count the notification as delivered."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        """Return status and code, and the steps of a receiver that the code can come from."""
        code = code_in(self.body)
        if self.accepted or code is None:
            return str(self.status)
        steps = steps_said(code)
        return f"{self.status} {code}{f', by step {steps}' if steps else ''}"


def code_in(body: bytes) -> str | None:
    """Return the code of a refusal; None if an answer's body has none that is ours."""
    try:
        code = read_json_object(body).get("code")
    except MalformedJsonError:
        return None
    return code if isinstance(code, str) and code in REFUSALS else None


class ReceiverUnderTest(ABC):
    """A running receiver that trusts the kit's agent.

    It expects every task of that agent, has a callback for every update, and accepts at least some
    hundred requests a second.
    """

    shows_callbacks: bool = True  # whether `callbacks` can be asked
    restarts: bool = True  # whether `restart` can be
    is_reached_directly: bool = True  # whether connections lead to it without a proxy

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to its absolute `target`; return None if there was no answer.

        By default over HTTP, on a new connection.
        """
        return await _post(request.target, request, _DIRECT)

    @abstractmethod
    async def callbacks(self) -> Sequence[str]:
        """Return the delivery ids that callbacks were called with so far, before restarts, too."""

    @abstractmethod
    async def restart(self) -> None:
        """Kill it, as a crash does, and start it again on the same state.

        It must not finish what it is doing. Return once it listens again.
        """


class ReceiverAtUrl(ReceiverUnderTest):
    """A receiver at a URL.

    `observe` is a command that prints the delivery ids that were called back so far, one per line;
    `restart` is one that kills the receiver and starts it again on the same state.
    """

    def __init__(
        self,
        url: str,
        *,
        observe: str | None = None,
        restart: str | None = None,
        connections: ConnectionOptions = _DIRECT,
    ) -> None:
        self.url = url
        self.connections = connections
        self._restart = words_of("--restart", restart)
        self._observe = words_of("--observe", observe)
        self.shows_callbacks = bool(self._observe)
        self.restarts = bool(self._restart)
        here = host_is_loopback(Url.parse(url).host)
        self.is_reached_directly = connections.proxy is None or here

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to the receiver's URL, whatever its target is."""
        return await _post(self.url, request, self.connections)

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
        """Return the delivery ids that the command prints."""
        output = await _run("--observe", self._observe)
        return [line.strip() for line in output.splitlines() if line.strip()]

    async def restart(self) -> None:
        """Restart it; return once it answers HTTP requests again."""
        await _run("--restart", self._restart)
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


async def _post(url: str, request: WebhookRequest, connections: ConnectionOptions) -> Answer | None:
    async with closing(Transport(DestinationPolicy.naming(url), connections)) as client:
        try:
            answer = await client.post(
                client.policy.check(url), list(request.headers), request.body, timeout=_POST_TIMEOUT
            )
        except TransportError:
            return None
    return Answer(status=answer.status, body=answer.body)


async def check_consent(subject: ReceiverAtUrl, *, operated: bool) -> None:
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


def words_of(option: str, command: str | None) -> list[str]:
    """Split a command as a shell would. Raises ConfigError: an open quote, or no such command."""
    try:
        words = shlex.split(command or "")
    except ValueError as exc:
        raise ConfigError(f"{option}: a quote is not closed") from exc
    if words and "/" in words[0] and not Path(words[0]).is_file():
        raise ConfigError(f"{option}: no such command: {words[0]}")
    return words


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

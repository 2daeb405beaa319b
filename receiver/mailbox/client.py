"""`Mailbox`: the client of a mailbox, for programs that no agent can call.

async with Mailbox("https://client.example.com/mailbox/laptop", token) as mailbox:
    async for notification in mailbox:
        ...
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp

from pushkit.errors import ConfigError, InboundError, InvalidUrlError, PushkitError
from pushkit.logs import RepeatedLog
from pushkit.net.destination import DestinationPolicy
from pushkit.net.tls import tls_context
from pushkit.queue.runner import seconds
from pushkit.scheduling.event_loop import cancelled
from pushkit.url import Url
from receiver.inbox.model import Notification
from receiver.mailbox.messages import FetchedNotification, fetched

_log = logging.getLogger("receiver.mailbox")

_WAIT: Final = 30  # seconds of a poll
_PATIENCE: Final = 15.0  # seconds for an answer, beyond the wait
_LAST_WORDS: Final = 5.0  # seconds for the nack of a loop that was left by an error
_PART_OF_LEASE: Final = 3  # after which it is renewed
_PAUSES_IN_LEASE: Final = 12  # at least, before a settlement is repeated
_LEAST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_LEAST_ROUND: Final = 1.0  # seconds between two polls if the first one's answer was empty
_PASSING: Final = (408, 425, 429)  # besides 5xx: statuses that the next request may not have


class MailboxRefusedError(PushkitError, code="mailbox_refused"):
    """The service refuses this client for good: its URL, or its token, is wrong."""


class _Answer(NamedTuple):
    status: int
    message: dict[str, Any]
    retry_after: float


class Mailbox:
    """Fetches the notifications of a mailbox: each task's in order, each again until it is done.

        async with Mailbox(url, token) as mailbox:
            async for notification in mailbox:
                ...

    A notification is acked when the loop asks for the next one, or the block ends without an error.
    After an error that leaves the block, or if this process dies, it comes again: its lease ends,
    or it is nacked. An error that the block catches outside of the loop's body cannot be told from
    `break`. Without `async with`, one whose loop was left in any way comes again. While the loop's
    body runs, its lease is renewed. While the service is out of reach, the loop waits. It runs one
    loop at a time: several need a `Mailbox` each.

    Args:
        url: The mailbox, `https://client.example.com/mailbox/name`.
        token: One of its tokens.
        allow: Hosts to which the token may be sent over plain HTTP, as `host:port` or `host:*`;
            beside this machine.
        ca_file: Root certificates in PEM, trusted beside the system's.

    Raises:
        ConfigError: The URL or the token cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        allow: Sequence[str] = (),
        ca_file: str | Path | None = None,
    ) -> None:
        try:
            parsed = Url.parse(url)
        except InvalidUrlError as exc:
            raise ConfigError(f"Mailbox: url: {exc}") from exc
        policy = DestinationPolicy(allow, loopback=True)
        if parsed.scheme != "https" and not policy.allows_by_name(parsed):
            raise ConfigError(
                f"Mailbox: url: found http to {parsed.host}, expected https: everybody on the way"
                " could read the token; name the host in allow if that is meant"
            )
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError("Mailbox: token: expected visible ASCII, as in [[mailbox]] tokens")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._tls = tls_context(ca_file=None if ca_file is None else Path(ca_file))
        self._session: aiohttp.ClientSession | None = None
        self._held: FetchedNotification | None = None  # with the body of the loop
        self._is_done = False  # the body has ended, and is being acked
        self._renewing: asyncio.Task[None] | None = None
        self._is_entered = False
        self._said = RepeatedLog(_log)

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._ack()
        finally:
            try:
                await self._close()
            finally:
                # Last: the event loop ends the generator of a loop that was left by `break`
                # meanwhile, and that closes the connection unless the block does.
                self._is_entered = False

    async def __aiter__(self) -> AsyncGenerator[Notification, None]:
        """Yield notifications for ever.

        Raises:
            MailboxRefusedError: The service knows no such mailbox with this token.
        """
        mine: FetchedNotification | None = None
        try:
            if not self._is_entered:  # what another loop was left with: its body may have failed
                await self._close()
            while True:
                await self._ack()
                mine = None
                mine = self._held = await self._fetch()
                self._renewing = asyncio.create_task(
                    self._renew(self._held), name="mailbox-renewing"
                )
                yield self._held.notification
        finally:
            if not self._is_entered and self._held is mine:
                await self._close()

    # --- fetching ----------------------------------------------------------------------------

    async def _fetch(self) -> FetchedNotification:
        """Return the next notification, whose lease has just begun, or holds."""
        while True:
            asked_at = seconds()
            answer = await self._ask("GET", f"?wait={_WAIT}")
            messages = answer.message.get("notifications", ())
            if not messages:  # a service that stops says so at once
                await asyncio.sleep(_LEAST_ROUND - (seconds() - asked_at))
            for message in messages:
                found = await self._read(message)
                if found and await self._holds(found, asked_at):
                    return found

    async def _holds(self, held: FetchedNotification, asked_at: float) -> bool:
        """Return whether a lease that began, or was renewed, after `asked_at` holds still.

        This machine may have slept, also while it renews: somebody else may have it by now.
        """
        while seconds() - asked_at > held.lease.total_seconds() / 2:
            asked_at = seconds()
            if (await self._settle("renew", held)).status != 200:
                return False
        return True

    async def _read(self, message: dict[str, Any]) -> FetchedNotification | None:
        """Read a notification; nack one that this version cannot read, so that it is not lost."""
        try:
            return fetched(message)
        except InboundError as exc:
            _log.error("a notification cannot be read, and is nacked: %s", exc)
            await self._ask("POST", "/nack", {"receipt": message["receipt"]})
            return None
        except (KeyError, TypeError, ValueError) as exc:
            raise self._refused(200, "no notification as this version reads it") from exc

    async def _renew(self, held: FetchedNotification) -> None:
        status = 200
        while status == 200:
            await asyncio.sleep(held.lease.total_seconds() / _PART_OF_LEASE)
            try:
                status = (await self._settle("renew", held)).status
            except MailboxRefusedError as exc:
                _log.error("a lease cannot be renewed: %s", exc)
                return
        if not self._is_done:  # else this crossed the ack, which says what it was answered
            number = held.notification.id
            _log.warning("the lease of notification %d ended before it was handled", number)

    # --- settling ----------------------------------------------------------------------------

    async def _ack(self) -> None:
        """Ack what the loop's body had, if anything, however long that takes."""
        if self._held is None:
            return
        held = self._held
        self._is_done = True
        answer = await self._settle("ack", held)
        self._held, self._is_done = None, False
        await self._stop_renewing()
        if answer.status != 200:
            _log.warning(
                "notification %d was handled, but its lease had ended before: it may come again",
                held.notification.id,
            )

    async def _close(self) -> None:
        """Nack what is held, if the service answers at once, and disconnect.

        If an ack was broken off, it is repeated instead.
        """
        held, verb = self._held, "ack" if self._is_done else "nack"
        self._held, self._is_done = None, False
        try:
            await self._stop_renewing()
            if held is not None:
                with contextlib.suppress(TimeoutError, MailboxRefusedError):
                    async with asyncio.timeout(_LAST_WORDS):
                        await self._settle(verb, held)
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def _stop_renewing(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            await cancelled(renewing)

    async def _settle(self, verb: str, held: FetchedNotification) -> _Answer:
        # A longer pause might outlast both the outage and the lease.
        longest = min(held.lease.total_seconds() / _PAUSES_IN_LEASE, _LONGEST_PAUSE)
        return await self._ask("POST", f"/{verb}", {"receipt": held.receipt}, longest=longest)

    # --- HTTP --------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        to: str,
        body: dict[str, str] | None = None,
        *,
        longest: float = _LONGEST_PAUSE,  # pause before it is repeated, in seconds
    ) -> _Answer:
        """Return the answer to a request, repeated while the service is out of reach.

        Raises:
            MailboxRefusedError: The service refuses it for good.
        """
        pause = _LEAST_PAUSE
        while True:
            try:
                answer = await self._ask_once(method, to, body)
            except (aiohttp.ClientError, OSError, TimeoutError) as exc:
                problem, wait = f"{type(exc).__name__}: {exc}", 0.0
            else:
                code = answer.message.get("code", "no code")
                if answer.status == 200 or code in ("lease_lost", "unknown_receipt"):
                    return answer
                if answer.status < 500 and answer.status not in _PASSING:
                    raise self._refused(answer.status, code)
                problem, wait = f"answered {answer.status}", answer.retry_after
            self._said.log(
                "out of reach", logging.WARNING, "%s: %s; trying again", self._url, problem
            )
            await asyncio.sleep(max(pause, wait) * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            pause = min(pause * 2, longest)

    async def _ask_once(self, method: str, to: str, body: dict[str, str] | None) -> _Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=self._tls, resolver=aiohttp.ThreadedResolver()),
                timeout=aiohttp.ClientTimeout(total=_WAIT + _PATIENCE, sock_connect=_PATIENCE),
            )
        # Never to another host: the token is in the headers.
        asking = self._session.request(method, self._url + to, json=body, allow_redirects=False)
        async with asking as response:
            content = await response.read()
            try:
                message = json.loads(content)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                if response.status == 200:
                    raise self._refused(200, "no JSON object")
                message = {}
            after = response.headers.get("Retry-After", "")
            wait = float(after) if after.isdecimal() else 0.0
            return _Answer(response.status, message, min(wait, _LONGEST_PAUSE))

    def _refused(self, status: int, found: str) -> MailboxRefusedError:
        return MailboxRefusedError(
            f"{self._url}: found {status} ({found}), expected a mailbox: compare its URL and token"
            " with [[mailbox]] of the receiver"
        )

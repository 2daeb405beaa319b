"""The mailboxes of a receiver over HTTP: authenticated polls, streams, and their settlements.

    GET  /mailbox/{name}?wait=30&max=1   notifications, leased; as server-sent events by `Accept`
    POST /mailbox/{name}/ack             {"receipt": "…"}: done
    POST /mailbox/{name}/nack            {"receipt": "…", "retry_after": 60}: again, later
    POST /mailbox/{name}/renew           {"receipt": "…"}: not done yet

docs/extensions/mailbox.md specifies it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from pushkit.bounded_json import JsonObject, read_json_object
from pushkit.errors import ConfigError, InboundError, MalformedRequestError, StorageError
from pushkit.events import Listeners
from pushkit.logs import RepeatedLog
from pushkit.options import Bounds, Count, check_options
from pushkit.scheduling.event_loop import LoopLock
from pushkit.scheduling.retry import RetryPolicy
from pushkit.storage.database import Database
from pushkit.storage.quota import Quota
from receiver.callbacks.reporting import report_dead
from receiver.callbacks.shares import CrowdedError
from receiver.inbox.mailboxes import (
    Deposit,
    HandedOutNotification,
    MailboxQueues,
    Receipt,
    Verb,
    count_pending,
    queue_in,
)
from receiver.inbox.model import Notification, StoredNotification
from receiver.inbox.store import queue_id_of
from receiver.mailbox.messages import (
    EVENTS,
    LONGEST_PAUSE,
    LONGEST_WAIT,
    MOST_AT_ONCE,
    PREFIX,
    message_of,
    written,
)
from receiver.request import Answer, Request
from receiver.service_state import read_in_time

_log = logging.getLogger("receiver")

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{20,512}")
_RECEIPT: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_JSON: Final = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
_STREAM: Final = (("Content-Type", EVENTS), ("Cache-Control", "no-store"))
_POLLS: Final = ("application/json", "application/*", "*/*")  # what accepts the answer to a poll
_MOST_POLLS: Final = 128  # that wait in all, in each process: connections are left for senders
_LOOK_SECONDS: Final = 1.0  # between looks for what other processes kept, or left unfinished
_REST_SECONDS: Final = 0.02  # after a look that found nothing: the next one finds more
_COMMENT_SECONDS: Final = 15.0  # between comments in a stream: proxies close silent connections
_STREAM_SECONDS: Final = 300.0  # of one stream; the client opens the next one
_MOST_ASKED: Final = 4096  # bytes of a settlement
_TRIED_AGAIN: Final = 200.0  # a second: notifications that had found their mailbox full


class MailboxUnauthorizedError(InboundError, code="mailbox_unauthorized", status=401):
    """There is no such mailbox, or the token is not one of its own."""


class MailboxBusyError(InboundError, code="mailbox_busy", status=429):
    """Too many polls of this mailbox, or of all, wait already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxOptions:
    """A mailbox: who may fetch from it, and how much it holds.

    Attributes:
        name: Its name in URLs, the log and metrics: lower case letters, digits, `.`, `_` and `-`.
        tokens: Its bearer tokens, 20 characters or more; any one is enough, so that one can be
            replaced.
        lease: For how long a notification is handed out; if it is not settled or renewed by then,
            it is handed out again.
        max_backlog: How many notifications may wait in it. Further ones wait in the inbox.
        max_polls: How many polls and streams may wait at once, in each process; above it, 429.
    """

    name: str
    tokens: Sequence[str] = field(default=(), repr=False)
    lease: Annotated[timedelta, Bounds(least=timedelta(seconds=5), most=timedelta(hours=1))] = (
        timedelta(seconds=60)
    )
    max_backlog: Count = 100_000
    max_polls: Count = 16

    def __post_init__(self) -> None:
        check_options(self, of="mailbox: ")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"mailbox: name: found {self.name!r}, expected up to 64 lower case letters,"
                " digits, dots, underscores and hyphens"
            )
        if not self.tokens or not all(map(_TOKEN.fullmatch, self.tokens)):
            raise ConfigError(
                f"mailbox {self.name!r}: tokens: expected at least one, each of 20 to 512"
                " characters of visible ASCII"
            )

    @property
    def path(self) -> str:
        """Where clients fetch from it, behind the receiver's URL."""
        return f"{PREFIX}{self.name}"


class _Mailbox:
    """A mailbox in this process: its options, and who waits."""

    def __init__(self, options: MailboxOptions) -> None:
        self.options = options
        self.name: str = options.name
        self.hashes: list[bytes] = [_hash(token.encode()) for token in options.tokens]
        self.quota = Quota[str](options.max_backlog, count_pending)
        self.waiting = 0
        self.news = asyncio.Event()
        self._line_ends = -math.inf  # when the last one of those that were put off is tried again
        self.looking = LoopLock()  # held by the one that looks for all
        # The last look, if it found nothing: the news that were awaited then, and when it began.
        self.nothing: tuple[asyncio.Event, float] | None = None

    def put_off(self) -> CrowdedError:
        """Put one off that has no room, behind those before it; return the error to raise."""
        now, least = time.monotonic(), CrowdedError().pause.total_seconds()
        self._line_ends = max(self._line_ends + 1 / _TRIED_AGAIN, now + least)
        return CrowdedError(timedelta(seconds=self._line_ends - now))

    def wake(self) -> None:
        """Let all that wait look again."""
        self.news.set()
        self.news = asyncio.Event()


class Mailboxes:
    """All mailboxes of a receiver: keeps notifications for them, and answers their clients."""

    def __init__(
        self,
        database: Database,
        *,
        path: str,  # of the receiver's URL, decoded: it may stand before the paths of requests
        retry: RetryPolicy,
        clock: Callable[[], datetime],
        events: Listeners,
        request_timeout: timedelta,  # for the body of a settlement
    ) -> None:
        self._database = database
        self._prefixes = (f"{path}{PREFIX}", PREFIX)
        self._request_timeout = request_timeout
        self._queues = MailboxQueues(database, retry)
        self._clock = clock
        self._events = events
        self._of_name: dict[str, _Mailbox] = {}
        self._said = RepeatedLog(_log)
        self._is_ending = False
        self._no_hashes = [_hash(b"")]

    def __contains__(self, path: str) -> bool:
        """Whether a path is for mailboxes, if there are any."""
        return bool(self._of_name) and path.startswith(self._prefixes)

    @property
    def options(self) -> list[MailboxOptions]:
        """The mailboxes, as they were added."""
        return [each.options for each in self._of_name.values()]

    def add(self, options: MailboxOptions) -> Callable[[Notification], Coroutine[None, None, None]]:
        """Add a mailbox; return the callback that keeps notifications in it.

        Raises:
            ConfigError: There is one of this name.
        """
        if options.name in self._of_name:
            raise ConfigError(f"mailbox {options.name!r} is there already: give each its own name")
        mailbox = self._of_name[options.name] = _Mailbox(options)

        async def keep(notification: Notification) -> None:
            await self._keep(mailbox, notification)

        return keep

    def remove(self, name: str) -> None:
        """Remove a mailbox: nothing is kept in it."""
        del self._of_name[name]

    def begin(self) -> None:
        """Let polls wait, from now on."""
        self._is_ending = False
        self.wake()  # an event may be another event loop's

    def end(self) -> None:
        """End all polls and streams: the process stops."""
        self._is_ending = True
        self.wake()

    def wake(self) -> None:
        """Look again in every mailbox: another process may have kept something."""
        for mailbox in self._of_name.values():
            mailbox.wake()

    async def _keep(self, mailbox: _Mailbox, notification: Notification) -> None:
        queue_id = queue_id_of(notification.sender, notification.task_id, notification.delivery_id)
        deposit = Deposit(
            mailbox=mailbox.name,
            quota=mailbox.quota,
            queue_id=queue_in(mailbox.name, queue_id),
            notification_id=notification.id,
            size=len(notification.body),
        )
        if not await self._database.write_together(self._queues.keeping, deposit):
            self._said.log(
                ("full", mailbox.name),
                logging.WARNING,
                "mailbox %s is full: %d notifications wait in it; further ones wait in the inbox",
                *(mailbox.name, mailbox.options.max_backlog),
                extra={"code": "mailbox_full"},
            )
            raise mailbox.put_off()
        mailbox.wake()

    # --- requests ----------------------------------------------------------------------------

    async def answer(self, request: Request) -> Answer:
        """Answer a request at one of the paths of mailboxes.

        Raises:
            InboundError: It is refused.
            StorageError: The inbox fails.
        """
        prefix = next(each for each in self._prefixes if request.path.startswith(each))
        name, _, verb = request.path.removeprefix(prefix).partition("/")
        mailbox = self._authenticated(name, request)
        if not verb:
            if request.method != "GET":
                raise _malformed("method", request.method, "GET")
            return await self._get(mailbox, request)
        if verb not in list(Verb) or request.method != "POST":
            raise _malformed("request", f"{request.method} {verb}", "POST to ack, nack or renew")
        result = await self._settle(mailbox, Verb(verb), await self._asked(request))
        return Answer(status=200, headers=_JSON, body=written(result))

    def _authenticated(self, name: str, request: Request) -> _Mailbox:
        """Return the mailbox whose token the request has.

        A name that does not exist takes as long, and is answered alike.
        """
        scheme, _, token = (request.headers.one("Authorization") or "").partition(" ")
        stated = _hash(token.strip().encode("utf-8", "replace"))
        mailbox = self._of_name.get(name)
        hashes = self._no_hashes if mailbox is None else mailbox.hashes
        fits = [hmac.compare_digest(stated, each) for each in hashes]
        if mailbox is None or not any(fits) or scheme.lower() != "bearer":
            raise MailboxUnauthorizedError(
                f"no mailbox {name[:64]!a} with the bearer token of this request: compare both with"
                " [[mailbox]]"
            )
        return mailbox

    async def _get(self, mailbox: _Mailbox, request: Request) -> Answer:
        query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
        most = _number(query, "max", 1, least=1, most=MOST_AT_ONCE)
        accept = request.headers.one("Accept") or ""
        if EVENTS in accept and not request.takes_streams:
            if not any(each in accept for each in _POLLS):
                raise _malformed("Accept", EVENTS, "polls: this framework sends whole answers")
        elif EVENTS in accept:
            self._check_room(mailbox)  # now: a stream that has begun has no other status
            events = self._events_of(mailbox, most, request)
            return Answer(status=200, headers=_STREAM, stream=events, close=True)
        wait = _number(query, "wait", 0, least=0, most=LONGEST_WAIT)
        loop = asyncio.get_running_loop()
        until, is_first = loop.time() + wait, True
        with self._waiting(mailbox):
            while True:
                news = mailbox.news
                found = []
                if not request.is_gone() and await self._is_due(mailbox, anew=is_first):
                    found = await self._claim(mailbox, most)
                is_first = False
                left = until - loop.time()
                if found or left <= 0 or self._is_ending or request.is_gone():
                    messages = [message_of(each, mailbox.options.lease) for each in found]
                    body = written({"notifications": messages})
                    return Answer(status=200, headers=_JSON, body=body)
                await _wait(news, min(left, _LOOK_SECONDS))

    def _check_room(self, mailbox: _Mailbox) -> None:
        """Check whether one more may wait.

        Raises:
            MailboxBusyError: It may not.
        """
        of_all = sum(each.waiting for each in self._of_name.values())
        if mailbox.waiting >= mailbox.options.max_polls or of_all >= _MOST_POLLS:
            raise MailboxBusyError(
                f"{mailbox.waiting} polls of mailbox {mailbox.name!r} wait, and {of_all} in all:"
                f" expected at most {mailbox.options.max_polls} (max_polls), and {_MOST_POLLS}"
            )

    @contextlib.contextmanager
    def _waiting(self, mailbox: _Mailbox) -> Iterator[None]:
        """Count one that waits; raises as `_check_room` does."""
        self._check_room(mailbox)
        mailbox.waiting += 1
        try:
            yield
        finally:
            mailbox.waiting -= 1

    async def _is_due(self, mailbox: _Mailbox, *, anew: bool = False) -> bool:
        """Return whether a claim may find something; one look a second is enough for all that wait.

        Args:
            mailbox: The mailbox.
            anew: Whether to look though another look has just found nothing.
        """
        async with mailbox.looking.here:
            if mailbox.nothing is not None and not anew:
                news, looked_at = mailbox.nothing
                if news is mailbox.news and time.monotonic() - looked_at < _LOOK_SECONDS:
                    return False
            news, looked_at = mailbox.news, time.monotonic()
            is_due = await self._database.read(self._queues.is_due(mailbox.name))
            mailbox.nothing = None if is_due else (news, looked_at)
            return is_due

    async def _claim(self, mailbox: _Mailbox, most: int) -> list[HandedOutNotification]:
        claim = self._queues.claim(mailbox.name, most, mailbox.options.lease)
        handed_out, dead = await self._database.write(claim)
        for each in dead:
            self._note_dead(mailbox.name, each, "its lease ended")
        return handed_out

    async def _events_of(
        self, mailbox: _Mailbox, most: int, request: Request
    ) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events; at most so many notifications are unsettled at once."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _STREAM_SECONDS
        leased: dict[str, int] = {}  # the queues that this stream has handed out, and their epochs
        try:
            with self._waiting(mailbox):
                yield b": open\n\n"
                said_at = loop.time()
                while loop.time() < ends_at and not (self._is_ending or request.is_gone()):
                    news = mailbox.news
                    if leased:
                        leased = await self._database.read(self._queues.still_held(leased))
                    room = most - len(leased)
                    is_due = room > 0 and await self._is_due(mailbox)
                    for each in await self._claim(mailbox, room) if is_due else ():
                        leased[each.queue_id] = each.receipt.epoch
                        data = written(message_of(each, mailbox.options.lease))
                        yield b"event: notification\ndata: " + data + b"\n\n"
                        said_at = loop.time()
                    if loop.time() - said_at > _COMMENT_SECONDS:
                        yield b":\n\n"
                        said_at = loop.time()
                    await _wait(news, _LOOK_SECONDS)
        except (MailboxBusyError, StorageError) as exc:  # the client asks again
            _log.warning("mailbox %s: a stream ends: %s", mailbox.name, exc)

    # --- settlements -------------------------------------------------------------------------

    async def _asked(self, request: Request) -> JsonObject:
        body = request.body
        if body is None:
            body = await read_in_time(request, _MOST_ASKED, self._request_timeout)
        if body is None or len(body) > _MOST_ASKED:
            raise _malformed("body", "a longer one", f"JSON of at most {_MOST_ASKED} bytes")
        return read_json_object(body)

    async def _settle(self, mailbox: _Mailbox, verb: Verb, asked: JsonObject) -> dict[str, Any]:
        receipt, pause, lease = _receipt_in(asked), _pause_in(asked), mailbox.options.lease
        settled = await self._database.write_patiently(
            lambda: self._queues.settle(mailbox.name, receipt, verb, lease=lease, pause=pause)
        )
        if verb is not Verb.RENEW:
            mailbox.wake()
        if settled.dead is not None:
            self._note_dead(mailbox.name, settled.dead, "nacked")
        message: dict[str, Any] = {"state": settled.state}
        if settled.until is not None:
            message["due_at" if verb is Verb.NACK else "lease_until"] = settled.until.isoformat()
        return message

    def _note_dead(self, mailbox: str, dead: StoredNotification, error: str) -> None:
        error = f"mailbox:{mailbox}: {error}"
        report_dead(dead, error, events=self._events, clock=self._clock)


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


async def _wait(news: asyncio.Event, seconds: float) -> None:
    """Wait for news, but not for longer; what comes soon after is found together with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
            await asyncio.sleep(_REST_SECONDS)


def _receipt_in(asked: JsonObject) -> Receipt:
    given = asked.get("receipt")
    found = _RECEIPT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise _malformed("receipt", type(given).__name__, "the one that the notification came with")
    return Receipt(int(found[1]), int(found[2]))


def _pause_in(asked: JsonObject) -> timedelta | None:
    seconds = asked.get("retry_after")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _malformed("retry_after", type(seconds).__name__, "seconds")
    if not 0 <= seconds <= LONGEST_PAUSE.total_seconds():
        raise _malformed("retry_after", str(seconds), "0 to 86400 seconds")
    return timedelta(seconds=seconds)


def _number(query: dict[str, str], name: str, default: int, *, least: int, most: int) -> int:
    value = query.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) < 6):
        raise _malformed(name, ascii(value[:20]), "a whole number")
    number = int(value)
    if number < least:
        raise _malformed(name, value, f"{least} to {most}")
    return min(number, most)


def _malformed(what: str, found: str, expected: str) -> MalformedRequestError:
    return MalformedRequestError(f"mailbox: {what}: found {found}, expected {expected}")

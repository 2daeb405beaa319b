"""An attacker on the network, who reads all requests to receivers and sends forgeries and replays.

Here the answers are checked; `Promises` checks that no forgery is called back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pushkit.errors import NoSigningKeyError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from receiver.testing import Draft
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.ledger import Instructions
from tests.verification.simulation.loop import Process
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.programs import ISSUER, OTHER_ISSUER, ReceivingUnit, other_key
from tests.verification.simulation.secrecy import CANARY
from tests.verification.simulation.webhook import first_request
from tests.verification.simulation.world import EPOCH, World

__all__ = ["FORGERIES", "Attacker"]

_GIVEN_UP = 20.0  # seconds that the attacker waits for an answer
_REFETCH = 30.0  # seconds after which a receiver fetches keys again for an unknown `kid`
_ADDRESS = "203.0.113.66"
_HOUR = timedelta(hours=1)
_OVERLAP = timedelta(seconds=5)  # for which a replaced token stays valid


@functools.cache
def _own_key() -> SigningKey:
    return generate_key(Algorithm.ES256)


def _with_wrong_key(draft: Draft) -> Draft:
    return replace(draft, key=_own_key(), header={"alg": "ES256", "kid": draft.key.kid})


# The forgeries: each changes one thing in a genuine notification.
FORGERIES: Mapping[str, Callable[[Draft], Draft]] = {
    "his key": lambda draft: replace(draft, key=_own_key()),
    "his key by their name": _with_wrong_key,
    "no signature": lambda draft: replace(draft, signed=False),
    "alg none": lambda draft: replace(draft, header={"alg": "none", "kid": draft.key.kid}),
    "another sender's key": lambda draft: replace(draft, key=other_key()),
    "another sender's name": lambda draft: replace(draft, issuer=OTHER_ISSUER),
    "long ago": lambda draft: replace(draft, issued_at=(draft.issued_at or EPOCH) - _HOUR),
    "from the future": lambda draft: replace(draft, issued_at=(draft.issued_at or EPOCH) + _HOUR),
    "for another": lambda draft: replace(draft, audience="https://hook0.example.com/jwt"),
    "another token": lambda draft: replace(draft, token=f"{CANARY}-nobody-has-this"),
    "no token": lambda draft: replace(draft, token=""),
    "another body": lambda draft: replace(draft, body_sent=draft.body.upper()),
}


@dataclass(frozen=True, slots=True)
class _Overheard:
    head: bytes
    body: bytes
    delivery_id: str


class Attacker:
    """The attacker, who knows all public data and all traffic; a step is a method `do_x`."""

    def __init__(
        self,
        world: World,
        # Returns the key that signs now, for notifications signed for somebody else.
        key: Callable[[], SigningKey],
        inboxes: Mapping[str, Disk | PostgresServer],  # the receivers' databases, by host
        instructions: Instructions,  # records what the other trusted sender sends
        receivers: Mapping[str, ReceivingUnit],  # by host: they hand tokens out
        *,
        quota: int,  # the most unfinished notifications of one sender at a receiver
    ) -> None:
        self._world = world
        self._quota = quota
        self._key = key
        self._inboxes = inboxes
        self._wishes = instructions
        self._receivers = receivers
        self._process = Process("attacker", _ADDRESS)
        self._heard: dict[str, list[_Overheard]] = defaultdict(list)
        self._streams: dict[int, bytes] = defaultdict(bytes)
        self._own_ports: set[int] = set()
        self._number = 0
        # By host, the sender and id of what was accepted before something was deleted.
        self._before_purge: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.answers: list[tuple[str, int]] = []

    # --- listening ------------------------------------------------------------------------------

    def overhear(self, host: str, connection: int, data: bytes) -> None:
        """Keep the requests of a connection to a receiver, unless it is the attacker's own."""
        if connection in self._own_ports:
            return
        stream = self._streams[connection] + data
        while found := first_request(stream):
            head, fields, body, stream = found
            delivery_id = fields.get("webhook-id", "")
            # What clients of mailboxes ask for is no notification.
            if not (delivery_id.startswith("forged") or b"/mailbox/" in head):
                self._heard[host].append(_Overheard(head, body, delivery_id))
        self._streams[connection] = stream

    # --- sending --------------------------------------------------------------------------------

    def do_replay(self, host: str, number: int) -> None:
        """Send an overheard request again: a receiver that has it must not call back again."""
        heard = self._heard[host]
        if not heard:
            return
        one = heard[number % len(heard)]
        has_it = bool(self._inboxes[host].select(_HAS, one.delivery_id))
        allowed = {200, 401} if has_it else {200, 202, 401}
        raw = one.head + b"\r\n\r\n" + one.body
        self._send(host, f"a replay of {one.delivery_id}", raw, allowed)

    def do_alter(self, host: str, number: int) -> None:
        """Send an overheard request with another body."""
        # Without a signature, a changed body cannot be detected.
        heard = [one for one in self._heard[host] if b" /unsigned " not in one.head]
        if not heard:
            return
        one = heard[number % len(heard)]
        raw = one.head + b"\r\n\r\n" + one.body.upper()
        self._send(host, f"altered {one.delivery_id}", raw, {401})

    def do_forge(self, host: str, what: str) -> None:
        """Send a forgery."""
        try:
            draft = self._draft(host)
        except NoSigningKeyError:
            return
        # Two senders share the path: without a signature it is from neither.
        allowed = {403} if what == "no signature" else {401}
        self._send(host, f"a forgery: {what}", _raw(FORGERIES[what](draft)), allowed)

    def do_reuse(self, host: str, number: int) -> None:
        """Send another body, correctly signed, with an id that the receiver has accepted."""
        heard = [one.delivery_id for one in self._heard[host]]
        known = [
            each
            for each in heard
            if self._inboxes[host].select(_BY_JWT, each)
            or ("jwt", each) in self._before_purge[host]
        ]
        if not known:
            return
        with contextlib.suppress(NoSigningKeyError):
            draft = replace(self._draft(host), delivery_id=known[number % len(known)])
            # A receiver does not find a key that was not announced until it may fetch again and the
            # agent answers. An agent whose clock is wrong publishes what it takes for the current
            # keys, until all is healed.
            now = self._world.loop.time()
            is_new = self._world.had_trouble("clock", 0, now) or any(
                self._world.had_trouble(kind, now - _REFETCH, now)
                for kind in ("hasty key", "freeze", "network")
            )
            allowed = {409, 401} if is_new else {409}
            self._send(host, f"another {draft.delivery_id}", _raw(draft), allowed)

    def do_flood(self, host: str, count: int) -> None:
        """Flood a receiver as another trusted sender."""
        for _ in range(count):
            draft = replace(
                self._draft(host, other_key()), issuer=OTHER_ISSUER, token=f"{CANARY}-other"
            )
            self._wishes.sent_by_other.add(draft.delivery_id)
            self._send(host, f"a flood of {draft.delivery_id}", _raw(draft), {200, 202})

    def do_duel(self, host: str, pairs: int) -> None:
        """Send two bodies under one new id at the same moment, as another trusted sender."""
        for _ in range(pairs):
            one = replace(
                self._draft(host, other_key()), issuer=OTHER_ISSUER, token=f"{CANARY}-other"
            )
            self._wishes.sent_by_other.add(one.delivery_id)
            other = replace(one, body=one.body.replace(b"_WORKING", b"_SUBMITTED"))
            self._world.spawn(self._duel(host, one, other), self._process)

    async def _duel(self, host: str, *drafts: Draft) -> None:
        what, allowed = f"a duel of {drafts[0].delivery_id}", {202, 409}
        sent = (self._sending(host, what, _raw(draft), allowed) for draft in drafts)
        if await asyncio.gather(*sent) == [202, 202]:
            self._world.violated(f"{host} accepted two bodies of one id: {what}")

    def do_forget(self, host: str) -> None:
        """Let an operator delete what is done: its ids stay remembered."""
        rows = self._inboxes[host].select("SELECT sender, delivery_id FROM pushkit_inbox")
        self._before_purge[host] |= {(row["sender"], row["delivery_id"]) for row in rows}
        self._receivers[host].do(self._receivers[host].purge)

    def do_renew(self, host: str, number: int, early: bool) -> None:
        """Replace a token before or after its first notification: both are for its task alone."""
        self._world.spawn(self._renew(host, f"renewed{number}", early), self._process)

    async def _renew(self, host: str, task: str, early: bool) -> None:
        old = await self._handed_out(host)
        if old is None or (not early and not await self._tell(host, old, task, 202)):
            return
        valid_until = self._world.loop.time() + _OVERLAP.total_seconds()
        new = await self._handed_out(host, replaces=old, overlap=_OVERLAP)
        if new is None or (early and not await self._tell(host, old, task, 202, valid_until)):
            return
        if await self._tell(host, new, f"not-{task}", 404) and await self._tell(
            host, new, task, 202
        ):
            await asyncio.sleep(2 * _OVERLAP.total_seconds())
            await self._tell(host, old, task, 404)

    async def _handed_out(self, host: str, **how: Any) -> str | None:
        asking = self._receivers[host].do(lambda: self._receivers[host].expect(**how))
        if asking is not None:
            await asyncio.wait([asking], timeout=_GIVEN_UP)
        is_done = asking is not None and asking.done() and not asking.cancelled()
        return asking.result() if is_done and asking is not None else None

    async def _tell(
        self, host: str, token: str, task: str, expected: int, valid_until: float | None = None
    ) -> bool:
        """Notify a task under a token; return whether it was answered as expected.

        A token that was replaced may be unknown to a receiver that answers after `valid_until`,
        because it stood still or waited for its disk.
        """
        url = f"https://{host}.example.com/renewed"
        with contextlib.suppress(NoSigningKeyError):
            draft = self._draft(host)
            body = draft.body.replace(b"forged", task.encode())
            draft = replace(draft, url=url, audience=url, token=token, task_id=task, body=body)
            self._wishes.sent_by_other.add(draft.delivery_id)
            # A token is unknown where power was lost, a key where it was not announced.
            allowed = {expected, 401} if self._world.troubles else {expected}
            if valid_until is not None:
                allowed.add(404)  # judged below, by the time of the answer
            what = f"{task} under {token[:4]}"
            status = await self._sending(host, what, _raw(draft), allowed)
            is_valid = valid_until is not None and self._world.loop.time() <= valid_until
            if status == 404 and is_valid and not self._may_have_no_path(host):
                self._world.violated(f"{what} was answered 404 by {host} within the overlap")
            return status == expected
        return False

    def _draft(self, host: str, key: SigningKey | None = None) -> Draft:
        self._number += 1
        url = f"https://{host}.example.com/jwt"
        event = {"taskId": "forged", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
        return Draft(
            url=url,
            issuer=ISSUER,
            audience=url,
            key=key or self._key(),
            token=f"{CANARY}-owner0",
            delivery_id=f"forged_{self._number}",
            task_id="forged",
            seq=self._number,
            body=json.dumps({"statusUpdate": event}).encode(),
            issued_at=EPOCH + timedelta(seconds=self._world.loop.time()),
        )

    def _send(self, host: str, what: str, raw: bytes, allowed: set[int]) -> None:
        self._world.spawn(self._sending(host, what, raw, allowed), self._process)

    async def _sending(self, host: str, what: str, raw: bytes, allowed: set[int]) -> int | None:
        """Send a request, and check the status of its answer; return it, None without one."""
        client = _Client()
        try:
            async with asyncio.timeout(_GIVEN_UP):
                await self._world.loop.create_connection(
                    lambda: client, f"{host}.example.com", 443, ssl=True
                )
                self._own_ports.add(client.transport.get_extra_info("sockname")[1])
                client.transport.write(raw)
                answer = await client.answered
        except (OSError, TimeoutError) as exc:
            self._world.note(f"{what}: {type(exc).__name__}")
            return None
        finally:
            if client.transport is not None:
                client.transport.abort()
        return self.judge(host, what, answer, allowed)

    def _may_have_no_path(self, host: str) -> bool:
        """Return whether a receiver may have been reloaded without a sender, whatever its token."""
        return self._world.had_trouble("trust", 0, self._world.loop.time(), whom=host)

    def judge(self, host: str, what: str, answer: bytes, allowed: set[int]) -> int:
        """Check that an answer is one of the right ones; return its status."""
        text = answer.decode("latin-1")
        status = int(text.split(" ", 2)[1])
        self._world.note(f"{what}: answered {status}")
        self.answers.append((what, status))
        self._world.secrets.check(f"an answer of {host}", text)
        # 429 for a flood, and 503 during a fault, are right for any request.
        is_busy = status in (429, 503) and (self._world.troubles or status == 429)
        now = self._world.loop.time()
        if self._may_have_no_path(host):
            allowed = allowed | {401, 403, 404}
        if self._world.had_trouble("stop", now - _GIVEN_UP, now):
            allowed = allowed | {408}  # aiohttp reads no more of a body once it shuts down
        if what.startswith("a flood") and status == 202:
            [row] = self._inboxes[host].select(_OF_OTHER)
            if row["found"] > self._quota:
                self._world.violated(f"{host} keeps {row['found']} notifications of one sender")
        if status not in allowed and not is_busy:
            self._world.violated(f"{what} was answered {status} by {host}")
        return status


_BY_JWT = "SELECT 1 FROM pushkit_inbox WHERE delivery_id = ? AND sender = 'jwt'"
_OF_OTHER = (
    "SELECT COUNT(*) AS found FROM pushkit_inbox WHERE sender = 'other' AND state = 'pending'"
)
_HAS = (
    "SELECT 1 FROM pushkit_inbox WHERE delivery_id = ?1"
    " UNION ALL SELECT 1 FROM pushkit_forgotten WHERE delivery_id = ?1"
)


class _Client(asyncio.Protocol):
    """Sends one request, and keeps the head of the answer with what came with it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received and not self.answered.done():
            self.answered.set_result(self._received)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError("no answer"))
            self.answered.exception()  # retrieved here: its task may have ended


def _raw(draft: Draft) -> bytes:
    request = draft.request()
    host, _, path = draft.url.removeprefix("https://").partition("/")
    fields = [("Host", host), *request.headers, ("Content-Length", str(len(request.body)))]
    lines = [f"POST /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode() + request.body

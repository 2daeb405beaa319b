"""A receiver with a mailbox, and clients that talk to it over HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pytest_aiohttp.plugin import AiohttpClient
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from receiver import InboxStatus, MailboxOptions, Receiver
from receiver.inbox.mailboxes import MailboxState
from tests.eventually import eventually

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient, TestServer

    from tests.unit.receiver.conftest import World, WorldFactory

MAILBOX_TOKEN = "the-token-of-the-laptop-is-private"
LEASE = timedelta(seconds=60)
# Twice again, after 10 s and after 20 s, to the second.
RETRY = RetryPolicy(wait=wait_schedule((10, 20), jitter=0), stop=stop_after_attempt(3))


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    message: dict[str, Any]

    @property
    def code(self) -> str:
        code: str = self.message["code"]
        return code

    @property
    def found(self) -> list[dict[str, Any]]:
        """The notifications that were handed out."""
        found: list[dict[str, Any]] = self.message["notifications"]
        return found

    @property
    def seqs(self) -> list[tuple[str, int]]:
        return [(each["task_id"], each["seq"]) for each in self.found]


class Laptop:
    """The world of a receiver with one mailbox, `laptop`, and its client."""

    def __init__(self, world: World, client: TestClient[Any, Any], server: TestServer) -> None:
        self.world = world
        self.client = client
        self.server = server

    @property
    def url(self) -> str:
        return str(self.server.make_url("/mailbox/laptop"))

    async def accept(self, *numbers: int, task_id: str = "task-1") -> None:
        """Have notifications accepted, and kept in the mailbox."""
        for number in numbers:
            answer = await self.world.receiver.receive(
                self.world.draft(number, task_id=task_id).request(), peer="192.0.2.1"
            )
            assert answer.status == 202
        await self.settled()

    async def settled(self) -> None:
        """Wait until the inbox has put everything into its mailboxes."""
        await eventually(self._is_settled)

    async def _is_settled(self) -> bool:
        stats = await self.world.receiver.inbox.stats()
        return not any(
            stats.statuses[each] for each in (InboxStatus.RECEIVED, InboxStatus.IN_PROGRESS)
        )

    async def ask(
        self, method: str, path: str, *, token: str | None = MAILBOX_TOKEN, **options: Any
    ) -> Reply:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.client.request(method, path, headers=headers, **options) as response:
            return Reply(response.status, dict(response.headers), json.loads(await response.text()))

    async def poll(self, query: str = "") -> Reply:
        return await self.ask("GET", f"/mailbox/laptop{query}")

    async def settle(self, verb: str, receipt: str, **members: Any) -> Reply:
        body = {"receipt": receipt, **members}
        return await self.ask("POST", f"/mailbox/laptop/{verb}", json=body)

    async def states(self) -> list[MailboxState]:
        """Return what is in the mailboxes that have anything."""
        return await self.world.receiver.inbox.mailboxes()

    async def state(self) -> MailboxState:
        """Return what is in the mailbox."""
        [state] = await self.states()
        return state


@pytest.fixture
async def laptop(make_world: WorldFactory, aiohttp_client: AiohttpClient) -> Laptop:
    return await make_laptop(make_world({"retry": RETRY}), aiohttp_client)


async def make_laptop(world: World, aiohttp_client: AiohttpClient, **options: Any) -> Laptop:
    receiver: Receiver = world.receiver
    of = {"name": "laptop", "tokens": [MAILBOX_TOKEN], "lease": LEASE, **options}
    receiver.mailbox(MailboxOptions(**of))
    server = await world.server_factory(receiver.app())
    return Laptop(world, await aiohttp_client(server), server)

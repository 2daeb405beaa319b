"""A sender with a webhook that answers as its path says, and its dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from pushkit import Authentication, KeyRing, PushConfig, PushSender, SenderOptions
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.webui.access import DashboardAccess
from tests.browser import TOKEN, Browser
from tests.databases import MadeSchemas
from tests.updates import working

ISSUER = "https://agent.example.com"
HOSTILE = '<script>alert("1")</script>\'&\u202e'


@cache
def key_ring() -> KeyRing:
    return KeyRing.create(utc_now())


@dataclass
class House:
    """A sender that is pumped by hand, and what its webhook answers."""

    sender: PushSender
    webhook: str
    statuses: dict[str, int]
    received: list[list[tuple[str, str]]]

    async def notify(
        self, task_id: str, path: str = "/ok", *, owner: str = "alice", tenant: str = ""
    ) -> str:
        """Register a webhook for a task, and store an update; return the delivery's id."""
        config = PushConfig(
            url=f"{self.webhook}{path}",
            token="a-token-of-the-client",
            authentication=Authentication(schemes=("Basic",), credentials="of-the-client"),
        )
        await self.sender.subscribe(task_id, config, version="1.0", owner=owner, tenant=tenant)
        [delivery_id] = (await self.sender.notify(working(task_id), tenant=tenant)).ids
        return delivery_id

    async def deliver(self) -> None:
        """Attempt all that is due."""
        while await self.sender.worker.run_once():
            pass

    async def fail_destination(self) -> None:
        """Let as many deliveries to one destination fail as open its breaker."""
        self.statuses["/broken"] = 500
        for number in range(5):
            await self.notify(f"task-{number}", "/broken")
        await self.deliver()

    async def dead_letter(self, task_id: str = "task-1", *, tenant: str = "") -> str:
        """Return the id of a delivery that its webhook found wrong."""
        self.statuses["/strict"] = 400
        delivery_id = await self.notify(task_id, "/strict", tenant=tenant)
        await self.deliver()
        return delivery_id

    async def state(self, delivery_id: str) -> str:
        """Return the state of a delivery."""
        report = await self.sender.outbox.show(delivery_id)
        assert report is not None
        return report.delivery.state.value


@pytest.fixture
async def house(location: str, aiohttp_server: AiohttpServer) -> AsyncIterator[House]:
    received: list[list[tuple[str, str]]] = []
    statuses: dict[str, int] = {}

    async def answer(request: web.Request) -> web.Response:
        received.append(list(request.headers.items()))
        return web.Response(status=statuses.get(request.path, 202), text=f"{request.headers}")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    server = await aiohttp_server(app)
    sender = PushSender(
        issuer=ISSUER,
        keys=key_ring(),
        database=location,
        allow=["127.0.0.1:*"],
        options=SenderOptions(keep_answers="all"),
    )
    await sender.open()
    yield House(sender, f"http://127.0.0.1:{server.port}", statuses, received)
    await sender.close()


Open = Callable[..., Awaitable[Browser]]


@pytest.fixture
def open_dashboard(house: House, aiohttp_client: AiohttpClient) -> Open:
    """Open the dashboard: read-only without a token, else as the access says."""

    async def open_(access: DashboardAccess | None = None) -> Browser:
        site = dashboard_app(
            house.sender.outbox,
            house.sender.subscription_admin,
            access=access or DashboardAccess(),
            keys=key_ring(),
            issuer=ISSUER,
        )
        return await Browser.at(site, aiohttp_client)

    return open_


@pytest.fixture
async def reader(open_dashboard: Open) -> Browser:
    """A browser on this machine, which may read."""
    return await open_dashboard()


@pytest.fixture
async def guest(open_dashboard: Open) -> Browser:
    """A browser that has not logged in, of a dashboard with a token and without actions."""
    return await open_dashboard(DashboardAccess(token=TOKEN))


@pytest.fixture
async def operator(open_dashboard: Open) -> Browser:
    """A browser of an operator, who has logged in and may act."""
    browser = await open_dashboard(DashboardAccess(token=TOKEN, allow_actions=True))
    await browser.log_in()
    return browser


@pytest.fixture
def postgres_dsn(made_outboxes: MadeSchemas) -> Iterator[str]:
    """Return the DSN of a schema with an outbox that is empty."""
    with made_outboxes.one() as dsn:
        yield dsn

"""A sender with a webhook that answers as its path says, and its dashboard as a browser sees it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from pushkit import (
    Authentication,
    KeyRing,
    PushConfig,
    PushSender,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.webui.access import DashboardAccess
from tests.databases import MadeSchemas

ISSUER = "https://agent.example.com"
TOKEN = "a-token-of-the-dashboard"
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
        status = TaskStatus(state=TaskState.WORKING)
        update = StatusUpdate(task_id=task_id, context_id="c", status=status)
        [delivery_id] = (await self.sender.notify(update, tenant=tenant)).ids
        return delivery_id

    async def deliver(self) -> None:
        """Attempt all that is due."""
        while await self.sender.worker.run_once():
            pass

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


@dataclass
class Browser:
    """A browser without JavaScript: follows links and redirects, and keeps cookies."""

    client: TestClient[web.Request, web.Application]

    async def get(self, path: str, status: int = 200) -> str:
        """Return a page."""
        async with self.client.get(path) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def submit(self, page: str, button: str, *, status: int = 200, **fields: str) -> str:
        """Press a button of a page; return what it leads to."""
        action, found = _form(page, button)
        origin = str(self.client.make_url("/")).rstrip("/")
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        async with self.client.post(action, data={**found, **fields}, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def log_in(self, token: str = TOKEN) -> str:
        """Log in; return the page that is shown then."""
        return await self.submit(await self.get("/login"), "Log in", token=token)

    def link(self, page: str, text: str) -> str:
        """Return the target of a link."""
        found = re.search(rf'<a[^>]*href="([^"]*)"[^>]*>[^<]*{re.escape(text)}', page)
        assert found, f"there is no link {text!r}"
        return html.unescape(found[1])


def _form(page: str, button: str) -> tuple[str, dict[str, str]]:
    """Return the action and the hidden fields of the form with this button."""
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", page, re.DOTALL):
        pressed = re.search(rf"<button([^>]*)>{re.escape(button)}</button>", form)
        if pressed is None:
            continue
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
        named = re.search(r'name="(\w+)" value="([^"]*)"', pressed[1])
        if named:
            fields[named[1]] = named[2]
        action = re.search(r'formaction="([^"]*)"', pressed[1]) or re.search(
            r'action="([^"]*)"', form
        )
        assert action
        return html.unescape(action[1]), {k: html.unescape(v) for k, v in fields.items()}
    raise AssertionError(f"there is no button {button!r}")


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
        # A jar that keeps cookies of an address, as browsers do.
        jar = aiohttp.CookieJar(unsafe=True)
        return Browser(await aiohttp_client(site.app(), cookie_jar=jar))

    return open_


@pytest.fixture
async def reader(open_dashboard: Open) -> Browser:
    """A browser on this machine, which may read."""
    return await open_dashboard()


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

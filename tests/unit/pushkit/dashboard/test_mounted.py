"""A dashboard inside another application: aiohttp's `add_subapp`, and a mount behind uvicorn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI
from pytest_aiohttp.plugin import AiohttpServer
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from pushkit.dashboard.app import sender_dashboard
from pushkit.errors import ConfigError
from pushkit.webui import asgi, site
from pushkit.webui.aiohttp import application
from pushkit.webui.site import Site
from tests.asgi_server import serving
from tests.browser import BEARER, TOKEN
from tests.eventually import DEADLINE, eventually
from tests.unit.pushkit.dashboard.conftest import House

CHANGED = b"event: changed\ndata:\n\n"


@pytest.fixture(params=["aiohttp", "fastapi", "starlette, nested"])
async def ops(
    request: pytest.FixtureRequest, house: House, aiohttp_server: AiohttpServer
) -> AsyncIterator[str]:
    """The URL of the dashboard, mounted in each framework."""
    mounted: Site = sender_dashboard(
        house.sender, token=TOKEN, hosts=["127.0.0.1"], allow_actions=True
    )
    if request.param == "aiohttp":
        app = web.Application()
        app.add_subapp("/ops", mounted.app())
        server = await aiohttp_server(app)
        yield str(server.make_url("/ops"))
        return
    host: Starlette = FastAPI()
    if request.param == "fastapi":
        host.mount("/ops", mounted.asgi())
    else:
        host = Starlette(routes=[Mount("/", Starlette(routes=[Mount("/ops", mounted.asgi())]))])
    async with serving(host) as base:
        yield f"{base}/ops"


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield session


async def test_an_address_that_a_client_makes_up_cannot_forge_a_log_line(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    mounted: Any = sender_dashboard(house.sender, token=TOKEN, hosts=["127.0.0.1"]).asgi()
    # As `uvicorn --forwarded-allow-ips '*'` does.
    app = ProxyHeadersMiddleware(mounted, trusted_hosts="*")
    made_up = {"X-Forwarded-For": "192.0.2.7 redrive done"}
    async with serving(app) as base, httpx.AsyncClient() as client:
        headers = {"Origin": base, **made_up}
        answer = await client.post(f"{base}/login", data={"token": "x"}, headers=headers)
    assert answer.status_code == 403
    assert "dashboard: wrong token from 192.0.2.7\\x20redrive\\x20done" in caplog.messages


async def test_a_failed_delivery_is_redriven_under_the_mount(
    house: House, ops: str, browser: aiohttp.ClientSession
) -> None:
    delivery_id = await house.dead_letter("report-7")
    page = f"{ops}/deliveries/{delivery_id}"
    async with browser.get(f"{page}?body=1") as answer:
        found = await answer.text()
    assert 'action="/ops/login"' in found
    then = re.search(r'name="next" value="([^"]+)"', found)
    assert then
    headers = {"Origin": ops.removesuffix("/ops")}
    form = {"token": TOKEN, "next": then[1]}
    async with browser.post(f"{ops}/login", data=form, headers=headers) as answer:
        assert str(answer.url) == f"{page}?body=1"
        found = await answer.text()
    assert 'href="/ops/deliveries?state=dead"' in found
    [style] = re.findall(r'href="(/ops/static/style[^"]+)"', found)
    async with browser.get(ops.removesuffix("/ops") + style) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/css"
    token = re.search(r'/redrive".*?name="form_token" value="(\w+)"', found, re.DOTALL)
    assert token
    form = {"form_token": token[1]}
    async with browser.post(f"{page}/redrive", data=form, headers=headers) as answer:
        assert "1 redriven." in await answer.text()
    assert await house.state(delivery_id) == "pending"


async def test_it_may_be_mounted_before_its_sender_opens_as_by_a_lifespan(house: House) -> None:
    await house.sender.close()
    mounted = sender_dashboard(house.sender, token=TOKEN, hosts=["127.0.0.1"], allow_actions=True)
    host = FastAPI(lifespan=house.sender.lifespan)
    host.mount("/ops", mounted.asgi())
    async with serving(host) as base, httpx.AsyncClient(headers=BEARER) as client:
        assert (await client.get(f"{base}/ops/api/v1/overview")).status_code == 200
        delivery_id = await house.dead_letter()
        house.statuses["/strict"] = 202
        await client.post(f"{base}/ops/api/v1/deliveries/{delivery_id}/redrive")

        async def is_delivered() -> bool:
            return await house.state(delivery_id) == "delivered"

        await eventually(is_delivered)


async def test_a_mounted_dashboard_needs_a_token(house: House) -> None:
    unset: Any = None  # as of os.environ.get()
    with pytest.raises(ConfigError, match="token: found NoneType, expected str"):
        sender_dashboard(house.sender, token=unset, hosts=["ops.example.com"])


async def test_the_api_and_its_description_stand_under_the_mount(
    ops: str, browser: aiohttp.ClientSession
) -> None:
    async with browser.get(f"{ops}/api/openapi.json", headers=BEARER) as answer:
        assert (await answer.json())["servers"] == [{"url": "/ops/api/v1"}]
    async with browser.get(f"{ops}/api/v1/overview", headers=BEARER) as answer:
        assert (await answer.json())["verdict"] == "idle"
    async with browser.get(f"{ops}/api/v1/overview") as answer:
        assert answer.status == 401


@pytest.mark.parametrize("mount", ["/public/ops", "/ops"])
async def test_a_root_path_may_stand_in_the_path_or_be_left_out(house: House, mount: str) -> None:
    host = FastAPI()
    host.mount("/ops", sender_dashboard(house.sender, token=TOKEN, hosts=["127.0.0.1"]).asgi())
    transport = httpx.ASGITransport(host, root_path="/public")  # Hypercorn leaves it out

    async with httpx.AsyncClient(transport=transport) as client:
        url = f"http://127.0.0.1{mount}/api/openapi.json"
        answer = await client.get(url, headers=BEARER)

    assert answer.json()["servers"] == [{"url": "/public/ops/api/v1"}]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/%6Fp%73/api/v1/overview", 200, id="a mount in another spelling"),
        pytest.param("/ops%2Fapi/v1/overview", 404, id="a segment that is partly the mount's"),
        pytest.param("/ops%2Fx/api/v1/overview", 404, id="such a segment before a page's path"),
    ],
)
async def test_a_path_is_read_as_a_middleware_in_front_reads_it(
    ops: str, path: str, status: int
) -> None:
    url = httpx.URL(ops).copy_with(raw_path=path.encode())
    async with httpx.AsyncClient(headers=BEARER) as client:
        assert (await client.get(url)).status_code == status


async def test_a_mount_is_found_without_a_slash(ops: str, browser: aiohttp.ClientSession) -> None:
    async with browser.get(ops) as answer:
        assert "<h1>Log in</h1>" in await answer.text()


async def test_another_host_is_refused_under_the_mount(
    ops: str, browser: aiohttp.ClientSession
) -> None:
    headers = {**BEARER, "Host": "evil.example.com"}
    async with browser.get(f"{ops}/", headers=headers) as answer:
        assert answer.status == 421
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_a_form_that_is_too_long_is_refused(ops: str, browser: aiohttp.ClientSession) -> None:
    form = {"token": "t" * 100_000}
    async with browser.post(f"{ops}/login", data=form) as answer:
        assert answer.status == 413


async def test_pages_are_live_under_the_mount_and_end_with_their_reader(
    monkeypatch: pytest.MonkeyPatch, ops: str, browser: aiohttp.ClientSession
) -> None:
    monkeypatch.setattr(site, "_LIVE_INTERVAL", 0.01)
    monkeypatch.setattr(site, "_MAX_LIVE", 1)
    async with asyncio.timeout(DEADLINE):
        for _ in range(3):  # one at a time: each is let in once the one before has gone
            status = 503
            while status == 503:
                async with browser.get(f"{ops}/live", headers=BEARER) as answer:
                    status = answer.status
                    if status == 200:
                        assert await answer.content.readline() == b"event: changed\n"


async def test_a_live_page_does_not_hold_up_a_server_that_stops(
    monkeypatch: pytest.MonkeyPatch, ops: str, browser: aiohttp.ClientSession
) -> None:
    monkeypatch.setattr(site, "_LIVE_INTERVAL", 0.01)
    async with asyncio.timeout(DEADLINE), browser.get(f"{ops}/live", headers=BEARER) as answer:
        # It waits for the end of the answer, after which the browser reconnects.
        assert await answer.read() == b"event: changed\nretry: 1000\ndata:\n\n"


async def test_behind_a_middleware_that_repeats_the_body_others_have_their_turn() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        yield CHANGED

    await asgi.PageAnswer(events=events()).send(receive, send)

    assert [each.get("body") for each in sent] == [None, CHANGED, b""]


async def test_an_aiohttp_application_ends_them_before_it_breaks_them_off() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        while True:
            yield CHANGED
            await asyncio.sleep(0.01)

    async def serve(_: asgi.Message, receive: asgi.Receive, send: asgi.Send) -> None:
        await asgi.PageAnswer(events=events()).send(receive, send)

    runner = web.AppRunner(application(serve), shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/live") as answer,
    ):
        await runner.cleanup()

        assert (await answer.read()).endswith(CHANGED)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", "/login", "GET, HEAD, POST"), ("OPTIONS", "/api/v1/deliveries", "GET, HEAD")],
)
async def test_another_method_is_answered_with_the_allowed_ones(
    ops: str, browser: aiohttp.ClientSession, method: str, path: str, allowed: str
) -> None:
    async with browser.request(method, f"{ops}{path}", headers=BEARER) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, allowed)


async def test_a_link_that_no_header_can_hold_leads_to_the_first_page(
    ops: str, browser: aiohttp.ClientSession
) -> None:
    headers, form = {"Origin": ops.removesuffix("/ops")}, {"token": TOKEN, "next": "/日本"}
    login = browser.post(f"{ops}/login", data=form, headers=headers, allow_redirects=False)
    async with login as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/ops/")


async def test_a_head_request_takes_no_live_page(
    monkeypatch: pytest.MonkeyPatch, ops: str, browser: aiohttp.ClientSession
) -> None:
    monkeypatch.setattr(site, "_LIVE_INTERVAL", 0.01)
    monkeypatch.setattr(site, "_MAX_LIVE", 1)
    for method in ("HEAD", "GET"):
        async with browser.request(method, f"{ops}/live", headers=BEARER) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")


async def test_a_body_that_breaks_off_is_none_for_aiohttp() -> None:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    async def serve(_: asgi.Message, receive: asgi.Receive, __: asgi.Send) -> None:
        found.set_result(await asgi.read_body(receive, 100))

    runner = web.AppRunner(application(serve))  # that of tests cancels whoever reads
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nid=dlv_1&id=dl")
    writer.close()
    async with asyncio.timeout(DEADLINE):
        assert await found is None
    await runner.cleanup()


async def test_a_body_that_breaks_off_is_none_for_asgi() -> None:
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b"id=dlv_1&id=dl", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    assert await asgi.read_body(receive, 100) is None

"""One client in several event loops, one after another, as calls of `asyncio.run` make them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pushkit.errors import AnswerTimeoutError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from tests.eventually import DEADLINE, PATIENT

# A loop that ends without the client's `close` leaves its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

SHORT = timedelta(milliseconds=200)


class Site(ThreadingHTTPServer):
    """Answers at once, but at `/silent` only when it ends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ending = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.server.ending.wait(DEADLINE)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        serving = threading.Thread(target=site.serve_forever)
        serving.start()
        yield site
        site.ending.set()
        site.shutdown()
        serving.join()
    gc.collect()


def transport_to(site: Site) -> Transport:
    policy = DestinationPolicy([f"127.0.0.1:{site.server_port}"])
    return Transport(policy, ConnectionOptions(max_connections_per_host=1))


async def get(
    transport: Transport, site: Site, path: str = "/", within: timedelta = PATIENT
) -> int:
    url = f"http://127.0.0.1:{site.server_port}{path}"
    async with asyncio.timeout(DEADLINE):
        answer = await transport.get(transport.policy.check(url), [], timeout=within)
    return answer.status


def test_a_request_uses_no_connection_of_a_loop_that_has_ended(site: Site) -> None:
    transport = transport_to(site)
    for _ in range(2):
        assert asyncio.run(get(transport, site)) == 204


def test_a_deadline_passes_though_the_timer_was_another_loops(site: Site) -> None:
    transport = transport_to(site)
    assert asyncio.run(get(transport, site, within=SHORT)) == 204
    with pytest.raises(AnswerTimeoutError):
        asyncio.run(get(transport, site, "/silent", within=SHORT))


def test_closing_it_in_another_loop_closes_it(site: Site) -> None:
    transport = transport_to(site)
    assert asyncio.run(get(transport, site)) == 204
    asyncio.run(transport.close())
    assert asyncio.run(get(transport, site)) == 204

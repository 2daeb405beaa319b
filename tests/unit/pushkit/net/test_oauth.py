"""Tokens from a real authorization server behind a public name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from pushkit.errors import ConfigError, OAuthError
from pushkit.net.authorization import ClientAuthentication, OAuthClient, OAuthTokens
from pushkit.net.transport import Transport
from tests.authorization_server import AUTH, AUTH_ADDRESS, TOKEN_URL, AuthorizationServer
from tests.clock import START, Clock
from tests.eventually import DEADLINE, PATIENT
from tests.internet import Handler, Internet
from tests.unit.pushkit.net.conftest import MakeTransport


class OAuth:
    """An authorization server behind a public name, and clients that ask it for tokens."""

    def __init__(self, internet: Internet, transport: Transport) -> None:
        self.server = AuthorizationServer()
        self.clock = Clock()
        self._internet = internet
        self._transport = transport
        self._made: list[OAuthTokens] = []

    def client(self, **changed: Any) -> OAuthTokens:
        known = {"client_id": self.server.client_id, "client_secret": self.server.secret}
        client = OAuthClient(**({"token_url": TOKEN_URL} | known | changed))
        self._made.append(OAuthTokens(client, self._transport, self.clock))
        return self._made[-1]

    async def tokens(self, handler: Handler | None = None, **changed: Any) -> OAuthTokens:
        """Return the tokens of a client, whose server answers by itself or by a handler."""
        await self._internet.serve(handler or self.server.token, name=AUTH, address=AUTH_ADDRESS)
        return self.client(**changed)

    async def close(self) -> None:
        for tokens in self._made:
            await tokens.close()


@pytest.fixture
async def oauth(internet: Internet, make_transport: MakeTransport) -> AsyncIterator[OAuth]:
    names, ca_file = internet.network.names, internet.ca_file
    oauth = OAuth(internet, make_transport(resolver=names, ca_file=ca_file))
    yield oauth
    await oauth.close()


def answering(document: object, status: int = 200) -> Handler:
    text = document if isinstance(document, str) else json.dumps(document)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


@pytest.mark.parametrize("way", list(ClientAuthentication))
async def test_a_token_is_issued_either_way(oauth: OAuth, way: ClientAuthentication) -> None:
    tokens = await oauth.tokens(
        authentication=way, scope="push more", audience="a", resource="https://r/"
    )
    assert await tokens.token(timeout=PATIENT) == oauth.server.issued[0]
    assert oauth.server.validator.methods == [way]
    [body] = oauth.server.bodies
    assert (body["grant_type"], body["scope"]) == ("client_credentials", "push more")
    assert (body["audience"], body["resource"]) == ("a", "https://r/")
    assert ("client_secret" in body) == (way is ClientAuthentication.POST)


async def test_json_is_asked_for_as_it_is(oauth: OAuth) -> None:
    asked: list[tuple[str | None, str | None]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers.get("Accept"), request.headers.get("Accept-Encoding")))
        return await oauth.server.token(request)

    tokens = await oauth.tokens(answer)
    await tokens.token(timeout=PATIENT)
    assert asked == [("application/json", "identity")]


async def test_no_attempt_waits_for_a_new_token_while_the_old_one_is_valid(oauth: OAuth) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow_the_second_time(request: web.Request) -> web.Response:
        if oauth.server.issued:
            asked.set()
            await go_on.wait()
        return await oauth.server.token(request)

    tokens = await oauth.tokens(slow_the_second_time)
    first = await tokens.token(timeout=PATIENT)
    oauth.clock.advance(3600 - 60)
    async with asyncio.timeout(DEADLINE):
        assert await tokens.token(timeout=timedelta(0)) == first  # not even a moment
        await asked.wait()
        oauth.clock.advance(60 - 5.1)
        assert await tokens.token(timeout=timedelta(0)) == first
        oauth.clock.advance(0.1)  # it might expire before the destination reads it
        waiting = asyncio.create_task(tokens.token(timeout=PATIENT))
        go_on.set()
        assert await waiting == oauth.server.issued[1] != first
    assert len(oauth.server.issued) == 2


@pytest.mark.parametrize(
    ("life", "ends"),
    [
        pytest.param(10, (8, 9), id="of seconds"),
        pytest.param(0, (0, 0), id="of nothing: asked for each time"),
        pytest.param(-5, (0, 0), id="of less than nothing"),
        pytest.param("600", (540, 595), id="in a string"),
        pytest.param(None, (240, 295), id="not said: five minutes"),
        pytest.param("soon", (240, 295), id="in words: five minutes"),
        pytest.param(True, (240, 295), id="a boolean: five minutes"),
        pytest.param(10**12, (86_340, 86_395), id="of ages: a day"),
        pytest.param(599.5, (539.5, 594.5), id="with a fraction"),
    ],
)
async def test_the_life_of_a_token(oauth: OAuth, life: object, ends: tuple[float, float]) -> None:
    fresh, good = ends
    number = iter(range(10))

    async def issue(_: web.Request) -> web.Response:
        said = {} if life is None else {"expires_in": life}
        return web.json_response(
            {"access_token": f"t{next(number)}", "token_type": "bearer"} | said
        )

    tokens = await oauth.tokens(issue)
    assert await tokens.token(timeout=PATIENT) == "t0"
    if good:
        for moment, renewed in ((fresh - 0.1, False), (fresh, True), (good - 0.1, True)):
            oauth.clock.now = START + timedelta(seconds=moment)
            assert await tokens.token(timeout=PATIENT) == "t0"
            assert tokens._token.is_flying is renewed
            await tokens.close()  # before it has started
        oauth.clock.now = START + timedelta(seconds=good)
    assert await tokens.token(timeout=PATIENT) == "t1"


async def test_a_caller_that_waits_too_long_gets_an_error(oauth: OAuth) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    tokens = await oauth.tokens(never)
    with pytest.raises(OAuthError, match="no answer in time"):
        await tokens.token(timeout=timedelta(milliseconds=50))


async def test_a_token_that_was_refused_is_replaced_once(oauth: OAuth) -> None:
    tokens = await oauth.tokens()
    first = await tokens.token(timeout=PATIENT)
    second = await tokens.replace(first, timeout=PATIENT)
    assert second != first
    assert await tokens.replace(first, timeout=PATIENT) == second  # another attempt's late 401
    assert await tokens.token(timeout=PATIENT) == second
    assert len(oauth.server.issued) == 2


async def test_a_token_that_was_refused_is_replaced_once_in_thirty_seconds(oauth: OAuth) -> None:
    tokens = await oauth.tokens()
    second = await tokens.replace(await tokens.token(timeout=PATIENT), timeout=PATIENT)
    with pytest.raises(OAuthError, match="there is no other one"):
        await tokens.replace(second, timeout=PATIENT)
    oauth.clock.advance(30)
    assert await tokens.replace(second, timeout=PATIENT) == oauth.server.issued[2]


async def test_a_wrong_secret_is_the_one_error(oauth: OAuth) -> None:
    tokens = await oauth.tokens(client_secret="canary")
    with pytest.raises(OAuthError, match=r"found 401 \(invalid_client\)") as caught:
        await tokens.token(timeout=PATIENT)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        pytest.param(answering("canary"), "not a JSON object", id="not JSON"),
        pytest.param(answering(["canary"]), "not a JSON object", id="a list"),
        pytest.param(answering({"token_type": "bearer"}), "access_token", id="no token"),
        pytest.param(
            answering({"access_token": "canary\r\nX: y", "token_type": "bearer"}),
            "access_token",
            id="a line break in the token",
        ),
        pytest.param(
            answering({"access_token": "can\u00e4ry", "token_type": "bearer"}),
            "access_token",
            id="beyond ASCII",
        ),
        pytest.param(answering({"access_token": "canary"}), "token_type", id="no type"),
        pytest.param(
            answering({"access_token": "canary", "token_type": "mac"}), "token_type", id="MAC"
        ),
        pytest.param(answering("canary", 500), "found 500", id="an error page"),
        pytest.param(
            answering({"error": "canary"}, 400), r"found 400$", id="an error that nobody knows"
        ),
        pytest.param(answering({"error": ["x"]}, 400), r"found 400$", id="an error that is a list"),
        pytest.param(answering({}, 302), "found 302", id="a redirect"),
        pytest.param(answering("x" * 70_000), "too long", id="an endless answer"),
    ],
)
async def test_an_answer_that_is_no_token_is_the_one_error(
    oauth: OAuth, handler: Handler, reason: str
) -> None:
    tokens = await oauth.tokens(handler)
    with pytest.raises(OAuthError, match=reason) as caught:
        await tokens.token(timeout=PATIENT)
    assert "canary" not in str(caught.value)


async def test_the_token_endpoint_is_under_the_guard(internet: Internet, oauth: OAuth) -> None:
    internet.network.names.says(AUTH, ["169.254.169.254"])
    for url, reason in ((TOKEN_URL, "not public"), ("http://127.0.0.1/token", "expected https")):
        with pytest.raises(OAuthError, match=reason):
            await oauth.client(token_url=url).token(timeout=PATIENT)
    assert internet.network.dialled == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_url": ""},
        {"client_id": ""},
        {"client_secret": ""},
        {"client_secret": "canary\n"},
        {"client_id": "not UTF-8: \udcff"},
        {"authentication": "private_key_jwt"},
    ],
)
def test_a_client_that_lacks_something_is_a_configuration_error(wrong: dict[str, str]) -> None:
    good = {"token_url": TOKEN_URL, "client_id": "a", "client_secret": "canary"}
    with pytest.raises(ConfigError, match="oauth: ") as caught:
        OAuthClient(**(good | wrong))
    assert "canary" not in str(caught.value)


def test_no_repr_shows_the_secret() -> None:
    client = OAuthClient(token_url=TOKEN_URL, client_id="a", client_secret="canary")
    assert "canary" not in repr(client)


async def test_the_event_loops_own_debugging_shows_no_token(
    oauth: OAuth, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = await oauth.tokens(answering({"access_token": "canary", "token_type": "bearer"}))
    loop = asyncio.get_running_loop()
    caplog.set_level("DEBUG")
    loop.slow_callback_duration = 0  # every step is logged, with what its task returned
    loop.set_debug(True)
    found = await tokens.token(timeout=PATIENT)
    await asyncio.sleep(0)
    loop.set_debug(False)
    assert found == "canary"
    assert "OAuth" in caplog.text or "Renewing" in caplog.text
    assert "canary" not in caplog.text

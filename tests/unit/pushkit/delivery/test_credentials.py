"""Credentials for destinations: static ones, tokens of a real authorization server, TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme
from aiohttp import web

from pushkit import (
    Authentication,
    ClientCertificate,
    DestinationCredentials,
    OAuthClient,
    Subscription,
    agentvault_credentials,
)
from pushkit.delivery.signatures import Signing
from pushkit.errors import ConfigError, DestinationRefusedError
from pushkit.outbox.model import Delivery
from pushkit.outbox.states import DeliveryState
from tests.authorization_server import AUTH, AUTH_ADDRESS, TOKEN_URL, AuthorizationServer
from tests.clock import Clock
from tests.eventually import DEADLINE
from tests.internet import HOOKS, Internet
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    attempt_delivery,
    deliver_due,
    enqueue,
    only,
    report_of,
    state_and_error,
    status,
)

ORIGIN = f"https://{HOOKS}"
CLIENT = OAuthClient(token_url=TOKEN_URL, client_id="agent:1 %", client_secret="s3cret&+:")


class Hook:
    """A webhook that records the headers of requests, and refuses those the test refuses."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.opens: Callable[[web.Request], bool] = lambda _: True

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(dict(request.headers))
        return web.Response(status=200 if self.opens(request) else 401)


@pytest.fixture
async def hook(public: Internet) -> Hook:
    hook = Hook()
    await public.serve(hook.answer)
    return hook


@pytest.fixture
async def server(public: Internet) -> AuthorizationServer:
    server = AuthorizationServer()
    await public.serve(server.token, name=AUTH, address=AUTH_ADDRESS)
    return server


@pytest.fixture
def delivered(public: Internet, senders: Senders) -> Callable[..., Any]:
    async def deliver(
        *credentials: DestinationCredentials,
        config: dict[str, Any] | None = None,
        owner: str = "alice",
        tenant: str = "",
        times: int = 1,
    ) -> list[Delivery]:
        sender = await senders.open(
            allow=(), ca_file=public.ca_file, credentials=credentials, concurrency=64
        )
        hook: dict[str, Any] = {"url": f"{ORIGIN}/hook"} | (config or {})
        for number in range(times):
            task_id = f"task-{number}"
            await sender.subscribe(task_id, hook, version="1.0", owner=owner, tenant=tenant)
            await sender.notify(status(task_id=task_id), tenant=tenant)
        await deliver_due(sender)
        return [
            delivery
            for number in range(times)
            for delivery in await sender.deliveries(f"task-{number}", tenant=tenant)
        ]

    return deliver


def static(scheme: str, credentials: str, **others: Any) -> DestinationCredentials:
    authentication = Authentication(schemes=(scheme,), credentials=credentials)
    return DestinationCredentials(origin=ORIGIN, authentication=authentication, **others)


# --- static credentials --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "credentials", "expected"),
    [
        ("Bearer", "abc", ("Authorization", "Bearer abc")),
        ("HMAC-SHA256", "k=1, v=2", ("Authorization", "HMAC-SHA256 k=1, v=2")),
        ("APIKEY", "abc", ("X-Api-Key", "abc")),
    ],
)
@pytest.mark.slow
async def test_static_credentials_of_client_and_operator_are_sent_alike(
    hook: Hook,
    delivered: Callable[..., Any],
    scheme: str,
    credentials: str,
    expected: tuple[str, str],
) -> None:
    header, value = expected
    clients = {"authentication": {"scheme": scheme, "credentials": credentials}}
    await delivered(config=clients)
    await delivered(static(scheme, credentials))
    [by_client, by_operator] = hook.requests
    for request in (by_client, by_operator):
        assert request[header] == value
        jwt = "Authorization" if header == "X-Api-Key" else "X-A2A-Signature"
        assert request[jwt].count(".") == 2
        assert ("X-A2A-Signature" in request) == (header == "Authorization")


async def test_the_clients_credentials_replace_the_operators(
    hook: Hook, server: AuthorizationServer, delivered: Callable[..., Any]
) -> None:
    own = {"authentication": {"scheme": "Bearer", "credentials": "clients"}}
    await delivered(DestinationCredentials(origin=ORIGIN, oauth=CLIENT), config=own)
    assert hook.requests[0]["Authorization"] == "Bearer clients"
    assert server.issued == []  # no token is fetched that is not sent


async def test_an_api_key_and_an_oauth_token_are_sent_together(
    hook: Hook, server: AuthorizationServer, delivered: Callable[..., Any]
) -> None:
    own = {"authentication": {"scheme": "ApiKey", "credentials": "clients"}}
    await delivered(DestinationCredentials(origin=ORIGIN, oauth=CLIENT), config=own)
    [request] = hook.requests
    assert request["X-Api-Key"] == "clients"
    assert request["Authorization"] == f"Bearer {server.issued[0]}"
    assert "X-A2A-Signature" in request


@pytest.mark.parametrize(
    ("owner", "tenant", "expected"),
    [
        ("alice", "acme", "Bearer alices"),
        ("alice", "", "Bearer everybodys"),
        ("bob", "acme", "Bearer everybodys"),
    ],
)
async def test_credentials_of_an_owner_are_sent_only_for_that_owner(
    hook: Hook, delivered: Callable[..., Any], owner: str, tenant: str, expected: str
) -> None:
    await delivered(
        static("Bearer", "alices", owner="alice", tenant="acme"),
        static("Bearer", "everybodys"),
        owner=owner,
        tenant=tenant,
    )
    assert hook.requests[0]["Authorization"] == expected


async def test_credentials_are_sent_only_to_their_origin(
    public: Internet, hook: Hook, delivered: Callable[..., Any]
) -> None:
    await public.serve(hook.answer, name="other.example.com", address="93.184.216.41")
    await public.serve(hook.answer, port=8443)
    await delivered(static("Bearer", "canary"), config={"url": "https://other.example.com/hook"})
    await delivered(static("Bearer", "canary"), config={"url": f"{ORIGIN}:8443/hook"})
    assert len(hook.requests) == 2
    assert not any("canary" in value for each in hook.requests for value in each.values())


# --- OAuth ---------------------------------------------------------------------------------------


async def test_a_token_is_fetched_once_for_many_deliveries(
    hook: Hook, server: AuthorizationServer, delivered: Callable[..., Any]
) -> None:
    hook.opens = server.opens
    found = await delivered(DestinationCredentials(origin=ORIGIN, oauth=CLIENT), times=30)
    assert {each.state for each in found} == {DeliveryState.DELIVERED}
    assert len(server.issued) == 1


async def test_a_refused_token_is_replaced_within_the_same_attempt(
    public: Internet, hook: Hook, server: AuthorizationServer, senders: Senders
) -> None:
    hook.opens = server.opens
    credentials = [DestinationCredentials(origin=ORIGIN, oauth=CLIENT)]
    sender = await senders.open(allow=(), ca_file=public.ca_file, credentials=credentials)
    await sender.subscribe("task-1", {"url": f"{ORIGIN}/hook"}, version="1.0")
    for _ in range(2):
        await sender.notify(status())
        await sender.worker.run_once()
        server.revoke()
    assert {(each.state, each.attempts) for each in await sender.deliveries("task-1")} == {
        (DeliveryState.DELIVERED, 1)
    }
    assert len(server.issued) == 2
    refused, repeated = hook.requests[1:]
    assert refused["webhook-id"] == repeated["webhook-id"]
    assert refused["Authorization"] != repeated["Authorization"]


async def test_a_refused_token_is_masked_though_its_successor_is_not_sent(
    public: Internet, server: AuthorizationServer, senders: Senders
) -> None:
    asked: list[Subscription] = []

    def fails_again(subscription: Subscription) -> Signing:
        asked.append(subscription)
        if len(asked) == 2:
            raise LookupError
        return Signing()

    async def repeats(request: web.Request) -> web.Response:
        return web.Response(status=401, text=request.headers["Authorization"])

    await public.serve(repeats)
    credentials = [DestinationCredentials(origin=ORIGIN, oauth=CLIENT)]
    sender = await senders.open(
        allow=(), ca_file=public.ca_file, credentials=credentials, signing=fails_again
    )
    delivery_id = await attempt_delivery(sender, f"{ORIGIN}/hook")

    [attempt] = (await report_of(sender, delivery_id)).attempts
    assert (attempt.status, len(server.issued)) == (401, 2)
    assert attempt.answer == b"Bearer ***"


async def test_a_destination_that_refuses_every_token_gets_two_requests_per_attempt(
    hook: Hook, server: AuthorizationServer, delivered: Callable[..., Any]
) -> None:
    hook.opens = lambda _: False
    [delivery] = await delivered(DestinationCredentials(origin=ORIGIN, oauth=CLIENT))
    assert (delivery.state, delivery.last_status) == (DeliveryState.PENDING, 401)
    assert len(hook.requests) == len(server.issued) == 2


async def test_a_destination_that_refuses_every_token_takes_none_away_from_the_others(
    public: Internet, hook: Hook, server: AuthorizationServer, senders: Senders
) -> None:
    hook.opens = lambda request: "other" in request.headers["Host"]
    await public.serve(hook.answer, name="other.example.com", address="93.184.216.41")
    origins = (ORIGIN, "https://other.example.com")
    credentials = [DestinationCredentials(origin=each, oauth=CLIENT) for each in origins]
    sender = await senders.open(allow=(), ca_file=public.ca_file, credentials=credentials)
    for number in range(2):
        await attempt_delivery(sender, f"{ORIGIN}/hook", f"task-{number}")
        server.validator.known = ("nobody", "")  # no more tokens
    assert len(server.issued) == 2
    await attempt_delivery(sender, f"{origins[1]}/hook", "task")
    assert (await only(sender, "task")).state is DeliveryState.DELIVERED


async def test_a_401_without_oauth_gets_one_request(
    hook: Hook, delivered: Callable[..., Any]
) -> None:
    hook.opens = lambda _: False
    await delivered(static("Bearer", "abc"))
    assert len(hook.requests) == 1


async def test_without_a_token_nothing_is_sent_and_the_breaker_stays_closed(
    public: Internet, hook: Hook, senders: Senders, clock: Clock
) -> None:
    server, is_up = AuthorizationServer(), asyncio.Event()

    async def down(request: web.Request) -> web.Response:
        return await server.token(request) if is_up.is_set() else web.Response(status=503)

    await public.serve(down, name=AUTH, address=AUTH_ADDRESS)
    credentials = [DestinationCredentials(origin=ORIGIN, oauth=CLIENT)]
    sender = await senders.open(allow=(), ca_file=public.ca_file, credentials=credentials)
    for number in range(10):  # more than would open a breaker
        await enqueue(sender, f"{ORIGIN}/hook", f"task-{number}")
    await sender.worker.run_once()
    for number in range(10):
        assert await state_and_error(sender, f"task-{number}") == (DeliveryState.PENDING, "oauth")
    assert hook.requests == []
    # The destination does not wait: deliveries are sent as soon as there are tokens again.
    is_up.set()
    clock.advance(10)
    await deliver_due(sender)
    assert len(hook.requests) == 10


async def test_the_attempt_timeout_covers_a_slow_authorization_server(
    public: Internet, hook: Hook, senders: Senders
) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    await public.serve(never, name=AUTH, address=AUTH_ADDRESS)
    sender = await senders.open(
        allow=(),
        ca_file=public.ca_file,
        credentials=[DestinationCredentials(origin=ORIGIN, oauth=CLIENT)],
        timeout=timedelta(milliseconds=100),
    )
    await enqueue(sender, f"{ORIGIN}/hook")
    async with asyncio.timeout(DEADLINE):
        await sender.worker.run_once()
    assert (await only(sender)).last_error == "oauth"
    assert hook.requests == []


# --- TLS -----------------------------------------------------------------------------------------


async def test_a_client_certificate_is_sent_only_to_its_destination(
    public: Internet, delivered: Callable[..., Any]
) -> None:
    shown = []

    async def record_certificate(request: web.Request) -> web.Response:
        shown.append(request.get_extra_info("peercert")["subjectAltName"][0][1])
        return web.Response()

    clients = trustme.CA()
    await public.serve(record_certificate, clients_of=clients)
    issued = clients.issue_cert("agent.example.com")
    path = public.directory / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    certificate = ClientCertificate(certificate=path)
    [found] = await delivered(DestinationCredentials(origin=ORIGIN, client_certificate=certificate))
    assert (found.state, shown) == (DeliveryState.DELIVERED, ["agent.example.com"])
    refused = (await delivered(config={"id": "another"}))[-1]
    assert (refused.state, refused.last_error) == (DeliveryState.PENDING, "transport")


async def test_the_log_says_once_that_a_client_certificate_has_expired(
    public: Internet, delivered: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    clients, path = trustme.CA(), public.directory / "both.pem"
    expired_at = datetime(2020, 1, 1, tzinfo=UTC)
    issued = clients.issue_cert("agent.example.com", not_after=expired_at)
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    await public.serve(Hook().answer, clients_of=clients)
    found = await delivered(
        DestinationCredentials(
            origin=ORIGIN, client_certificate=ClientCertificate(certificate=path)
        ),
        times=2,
    )
    assert [each.last_error for each in found] == ["transport"] * 2
    [logged] = [message for message in caplog.messages if "expired" in message]
    assert logged == (
        f"the client certificate {path} expired at {expired_at.isoformat()}, and webhooks may"
        " refuse it: replace the file, and restart"
    )


async def test_the_ca_file_of_a_destination_is_trusted_only_there(
    public: Internet, hook: Hook, senders: Senders
) -> None:
    await public.serve(hook.answer, name="other.example.com", address="93.184.216.41")
    credentials = [DestinationCredentials(origin=ORIGIN, ca_file=public.ca_file)]
    sender = await senders.open(allow=(), credentials=credentials)
    for number, host in enumerate((HOOKS, "other.example.com")):
        await enqueue(sender, f"https://{host}/", f"task-{number}")
    await sender.worker.run_once()
    assert [request["Host"] for request in hook.requests] == [HOOKS]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param([static("Bearer", "a"), static("Bearer", "b")], id="twice"),
        pytest.param(
            [static("Bearer", "a"), DestinationCredentials(origin=f"{ORIGIN}:443/")],
            id="twice, spelled differently",
        ),
        pytest.param([DestinationCredentials(origin=f"{ORIGIN}/hook")], id="with a path"),
        pytest.param([DestinationCredentials(origin=HOOKS)], id="without a scheme"),
        pytest.param([DestinationCredentials(origin="http://a.example.com")], id="not https"),
        pytest.param(
            [
                DestinationCredentials(
                    origin=ORIGIN,
                    oauth=OAuthClient(
                        token_url="http://a.example.com", client_id="a", client_secret="canary"
                    ),
                )
            ],
            id="a token endpoint without TLS",
        ),
    ],
)
async def test_unusable_credentials_are_a_configuration_error(
    senders: Senders, credentials: list[DestinationCredentials]
) -> None:
    with pytest.raises((ConfigError, DestinationRefusedError)) as caught:
        await senders.open(allow=(), credentials=credentials)
    assert "canary" not in str(caught.value)


def test_two_credentials_for_the_same_header_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="either static credentials or oauth"):
        static("Bearer", "a", oauth=CLIENT)
    with pytest.raises(ConfigError, match="expected a scheme and credentials"):
        DestinationCredentials(origin=ORIGIN, authentication=Authentication(schemes=("Bearer",)))
    assert static("ApiKey", "a", oauth=CLIENT)


def test_no_repr_shows_a_secret() -> None:
    shown = repr(static("ApiKey", "canary", oauth=CLIENT))
    assert "canary" not in shown
    assert "s3cret" not in shown


# --- AgentVault ----------------------------------------------------------------------------------

AGENTVAULT_OAUTH: dict[str, Any] = {
    "scheme": "oauth2",
    "tokenUrl": TOKEN_URL,
    "scopes": ["push", "more"],
    "service_identifier": "x",
}


@pytest.mark.parametrize(
    ("schemes", "header", "value"),
    [
        ([{"scheme": "apiKey"}], "X-Api-Key", "key"),
        ([{"scheme": "bearer"}], "Authorization", "Bearer token"),
        ([{"scheme": "hmac"}, {"scheme": "apiKey"}], "X-Api-Key", "key"),
        ([{"scheme": "apiKey"}, {"scheme": "bearer"}], "X-Api-Key", "key"),
    ],
)
async def test_the_schemes_of_an_agentvault_card_become_credentials(
    hook: Hook,
    delivered: Callable[..., Any],
    schemes: Any,
    header: str,
    value: str,
) -> None:
    found = agentvault_credentials(ORIGIN, {"authSchemes": schemes}, api_key="key", token="token")
    assert found is not None
    await delivered(found)
    assert hook.requests[0][header] == value


async def test_oauth_of_an_agentvault_card_sends_its_secret_in_the_body(
    hook: Hook, server: AuthorizationServer, delivered: Callable[..., Any]
) -> None:
    hook.opens = server.opens
    found = agentvault_credentials(
        ORIGIN,
        {"authSchemes": [AGENTVAULT_OAUTH]},
        client_id="agent:1 %",
        client_secret="s3cret&+:",
    )
    assert found is not None
    [delivery] = await delivered(found)
    assert delivery.state is DeliveryState.DELIVERED
    assert server.validator.methods == ["client_secret_post"]
    assert server.bodies[0]["scope"] == "push more"


def test_the_agentvault_scheme_none_needs_no_credentials() -> None:
    assert (
        agentvault_credentials(ORIGIN, {"authSchemes": [{"scheme": "none"}]}, api_key="key") is None
    )


@pytest.mark.parametrize(
    "schemes",
    [
        [],
        [{"scheme": "apiKey"}],
        [{"scheme": None}],
        [{}],
        [AGENTVAULT_OAUTH | {"tokenUrl": None}],
        [AGENTVAULT_OAUTH | {"scopes": "push"}],
        [AGENTVAULT_OAUTH | {"scopes": [1]}],
    ],
)
def test_an_agentvault_card_without_a_usable_scheme_is_a_configuration_error(
    schemes: Any,
) -> None:
    with pytest.raises(ConfigError, match=r"auth_?[sS]chemes") as caught:
        agentvault_credentials(
            ORIGIN, {"authSchemes": schemes}, client_id="a", client_secret="canary"
        )
    assert "canary" not in str(caught.value)

"""No secret in any output: logs at DEBUG, what is printed, errors, reprs, answers, databases.

Unique secrets are planted everywhere, traffic and every kind of failure is run over them, and then
all that came out is searched. A test of the search comes first: it finds what is there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import logging
import socket
import sqlite3
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import click
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

import pushkit.cli.main
import receiver.cli
from pushkit import (
    AlertOptions,
    Artifact,
    ArtifactUpdate,
    Authentication,
    DestinationCredentials,
    KeyRing,
    Message,
    OAuthClient,
    PushConfig,
    PushSender,
    Role,
    SecretKeys,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
    TextPart,
    load_key_ring,
    save_key_ring,
)
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.errors import StorageError
from pushkit.events import Event
from pushkit.keys.jwk import public_jwk, signing_key_to_pem
from pushkit.secrets.sealing import SecretKey
from pushkit.secrets.vault import SecretsAdmin
from pushkit.terminal.output import JsonLines
from pushkit.webui.access import DashboardAccess
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.dashboard.app import dashboard_of
from tests.eventually import eventually
from tests.served import answering
from tests.system.security.canaries import Canaries

ISSUER = "https://agent.example.com"
# Where the sender keeps what it sends is no part of what is tested.
IN_SQLITE = pytest.mark.parametrize("location", ["sqlite"], indirect=True)


# --- all that comes out ------------------------------------------------------------------------


@dataclass
class Output:
    """All that came out, by where."""

    logged: io.StringIO = field(default_factory=io.StringIO)
    said: list[tuple[str, str]] = field(default_factory=list)

    def note(self, where: str, text: object) -> None:
        """Keep what something said, and what its repr is."""
        self.said.append((where, f"{text!s}\n{text!r}"))

    async def refused(self, where: str, work: Awaitable[object]) -> BaseException:
        """Await what must fail, and keep all that the error says, its causes included."""
        try:
            await work
        except Exception as exc:  # noqa: BLE001  # whatever it is, it must not tell
            self.note(where, "".join(traceback.format_exception(exc)))
            self.note(where, exc)
            return exc
        raise AssertionError(f"{where}: was not refused")

    def leaks(self, canaries: Canaries) -> dict[str, set[str]]:
        """Return which secrets came out where."""
        everything = [("the log", self.logged.getvalue()), *self.said]
        found: dict[str, set[str]] = {}
        for where, text in everything:
            if names := canaries.found_in(text):
                found.setdefault(where, set()).update(names)
        return found


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> Iterator[Output]:
    """Everything at DEBUG, as text and as JSON, with tracebacks and the event loop's debugging."""
    output = Output()
    handler = logging.StreamHandler(output.logged)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    as_json = logging.StreamHandler(output.logged)
    as_json.setFormatter(JsonLines())
    root = logging.getLogger()
    caplog.set_level(logging.DEBUG)
    for each in (handler, as_json):
        root.addHandler(each)
    yield output
    for each in (handler, as_json):
        root.removeHandler(each)


# --- what is planted ---------------------------------------------------------------------------


@dataclass
class House:
    """A sender with secrets of every kind, and who it sends to."""

    folder: Path
    database: str
    canaries: Canaries
    output: Output
    secrets: SecretKeys
    token: str
    credentials: str
    body: str
    webhook: str = ""
    receiver: str = ""
    events: list[Event] = field(default_factory=list)

    @property
    def keys(self) -> Path:
        return self.folder / "keys.json"

    def sender(self, *, secrets: SecretKeys | None = None, **options: Any) -> PushSender:
        chosen: dict[str, Any] = {
            "seal_bodies": secrets is not None,
            "keep_answers": "all",
            "timeout": timedelta(seconds=5),
        }
        return PushSender(
            issuer=ISSUER,
            keys=self.keys,
            passphrase=self.canaries.planted["passphrase"],
            database=self.database,
            allow=["127.0.0.1:*"],
            options=SenderOptions(**(chosen | options)),
            on_event=self.events.append,
            secrets=secrets,
        )

    def config(self, path: str) -> PushConfig:
        return PushConfig(
            url=f"{self.webhook}{path}",
            token=self.token,
            authentication=Authentication(schemes=("Basic",), credentials=self.credentials),
        )

    def update(self, task_id: str) -> StatusUpdate:
        says = Message(
            message_id="m1", role=Role.AGENT, parts=(TextPart(text=self.body),), task_id=task_id
        )
        return StatusUpdate(
            task_id=task_id,
            context_id="c",
            status=TaskStatus(state=TaskState.WORKING, message=says),
        )


def plant(folder: Path, database: str, output: Output) -> House:
    canaries = Canaries()
    ring = KeyRing.create(utc_now())
    key = ring.signing_key(utc_now())
    assert isinstance(key.private_key, ec.EllipticCurvePrivateKey)
    number = key.private_key.private_numbers().private_value
    canaries.plant("private key, as a number", str(number))
    canaries.plant("private key", number.to_bytes(32, "big"))
    assert canaries.found_in(signing_key_to_pem(key).replace(b"\n", b""))
    passphrase = canaries.plant("passphrase")
    save_key_ring(folder / "keys.json", ring, passphrase.encode())
    first, second = SecretKey.generate(), SecretKey.generate()
    for name, secret in (("first secret key", first), ("second secret key", second)):
        canaries.plant(name, secret.material)
    (folder / "secret.keys").write_text(f"{first.to_text()}\n{second.to_text()}\n", "ascii")
    (folder / "secret.keys").chmod(0o600)
    return House(
        folder=folder,
        database=database,
        canaries=canaries,
        output=output,
        secrets=SecretKeys([first, second]),
        token=canaries.plant("token"),
        credentials=canaries.plant("credentials"),
        body=canaries.plant("body"),
    )


@pytest.fixture
async def house(
    tmp_path: Path, location: str, output: Output, aiohttp_server: AiohttpServer
) -> AsyncIterator[House]:
    """A house with a webhook that answers as its path says, every answer an echo of the request."""

    async def answers(request: web.Request) -> web.Response:
        echo = f"{dict(request.headers)} {await request.text()}"
        status = int(request.path.strip("/") or 200)
        headers = {"Location": "https://client.example.com/"} if status // 100 == 3 else {}
        return web.Response(status=status, text=echo, headers=headers)

    server = await aiohttp_server(answering(answers), access_log=None)
    house = plant(tmp_path, location, output)
    house.webhook = f"http://127.0.0.1:{server.port}"
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0  # every callback is logged, with its arguments
    yield house
    loop.set_debug(False)


def test_the_search_finds_what_is_there() -> None:
    canaries = Canaries()
    secret = canaries.plant("token")
    for text in (secret, secret.encode().hex(), f"x{secret}", repr(secret.encode())):
        assert canaries.found_in(text) == {"token"}
    for before in ("", "a", "ab"):
        encoded = base64.b64encode(f"{before}{secret}:rest".encode())
        assert canaries.found_in(encoded) == {"token"}
    assert canaries.found_in("nothing") == set()


# --- the sender --------------------------------------------------------------------------------


async def run_sender(house: House, sender: PushSender) -> None:
    """Deliver, and fail in every way that there is."""
    await sender.open()
    note = house.output.note
    for path in ("/200", "/401", "/500", "/302", "/400", "/410", "/429"):
        task_id = f"task{path.replace('/', '-')}"
        note("subscribe", await sender.subscribe(task_id, house.config(path), version="1.0"))
        await sender.notify(house.update(task_id), idempotency_key="once")
    closed = PushConfig(url="http://127.0.0.1:1/", token=house.token)
    await sender.subscribe("task-closed", closed, version="1.0")
    await sender.notify(house.update("task-closed"))
    while await sender.worker.run_once():
        pass
    for task_id in ("task-200", "task-401", "task-closed"):
        note("subscriptions", await sender.subscriptions(task_id))
        note("subscribers", await sender.subscribers(task_id))
        note("deliveries", await sender.deliveries(task_id))
        note("configs", await sender.configs_to_send_with(task_id))
    for summary in await sender.outbox.find():
        note("outbox", summary)
        note("outbox", await sender.outbox.show(summary.id))
    note("outbox", await sender.outbox.stats())
    note("events", house.events)
    note("sender", sender)
    note("options", sender.options)
    note("keys", load_key_ring(house.keys, house.canaries.planted["passphrase"]))
    note("secrets", house.secrets)


async def run_refusals(house: House, sender: PushSender) -> None:
    """Call everything wrongly, with secrets in the wrong places."""
    refused, token = house.output.refused, house.token
    url = f"{house.webhook}/200"
    for where, config in {
        "a refused address": {"url": f"https://10.0.0.1/{token}", "token": token},
        "a scheme": {"url": f"ftp://client.example.com/?key={token}"},
        "user information": {"url": f"https://user:{token}@client.example.com/"},
        "no URL": {"url": f"not a url {token}"},
        "a line break": {"url": url, "token": f"{token}\r\nX: y"},
        "too long": {"url": url, "token": token * 200},
        "a list": {"url": url, "token": [token]},
        "an object": {"url": {token: token}},
        "credentials": {
            "url": url,
            "authentication": {"scheme": "Basic", "credentials": f"{token}\n"},
        },
        "authentication": {"url": url, "authentication": token},
        "no scheme": {"url": url, "authentication": {"credentials": token}},
    }.items():
        await refused(where, sender.subscribe("task-x", config, version="1.0"))  # type: ignore[arg-type]
    await refused("version", sender.subscribe("task-x", {"url": url}, version=token))
    changed = StatusUpdate(
        task_id="task-200", context_id=house.body, status=TaskStatus(state=TaskState.FAILED)
    )
    await refused("another update", sender.notify(changed, idempotency_key="once"))
    await refused("no transaction", sender.notify(changed, connection=object()))
    await sender.subscribe("task-03", house.config("/200"), version="0.3")
    artifact = Artifact(artifact_id="a", parts=(TextPart(text=house.body),))
    result = await sender.notify(ArtifactUpdate(task_id="task-03", artifact=artifact))
    assert [each.code for each in result.refused] == ["snapshot_required"]
    house.output.note("no snapshot", result)
    await refused("no keys", _closed_sender(house).notify(changed))


def _closed_sender(house: House) -> PushSender:
    sender = house.sender(secrets=house.secrets)
    sender._closed = True
    return sender


async def run_storage_errors(house: House, sender: PushSender) -> None:
    """Let the database refuse rows that are full of secrets: its own words name their values."""
    await sender.open()
    await sender.subscribe("task-1", house.config("/200"), version="1.0")
    await sender.notify(house.update("task-1"))
    for column in ("subscriptions (token)", "bodies (body)"):
        table = f"pushkit_{column}"
        await execute(house.database, f"CREATE UNIQUE INDEX only_{column[:4]} ON {table}")
    refused = house.output.refused
    error = await refused(
        "storage", sender.subscribe("task-2", house.config("/200"), version="1.0")
    )
    assert isinstance(error, StorageError)
    error = await refused("storage", sender.notify(house.update("task-1")))
    assert isinstance(error, StorageError)
    await execute(house.database, "DROP TABLE pushkit_attempts")
    await sender.worker.run_once()  # cannot settle, and says so
    await sender.close()


async def execute(database: str, sql: str) -> None:
    if "://" not in database:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute(sql)
        return
    found = await asyncpg.connect(database)
    await found.execute(sql)
    await found.close()


async def everything_in(house: House) -> bytes:
    """Return all that the database holds: the files with their logs, or every row as text."""
    if "://" not in house.database:
        files = sorted(house.folder.glob("database.db*"))
        return b"".join(path.read_bytes() for path in files)
    found = await asyncpg.connect(house.database)
    tables = await found.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    )
    rows = [
        row["whole"]
        for (table,) in tables
        for row in await found.fetch(f"SELECT t::text AS whole FROM {table} t")  # noqa: S608  # our tables
    ]
    await found.close()
    return "\n".join(rows).encode()


async def test_a_sealing_sender_lets_no_secret_out(house: House) -> None:
    sender = house.sender(secrets=house.secrets)
    await run_sender(house, sender)
    await run_refusals(house, sender)
    stored = await everything_in(house)
    assert b"task-200" in stored
    assert house.canaries.found_in(stored) == set()
    await sender.close()
    assert len(house.output.logged.getvalue()) > 10_000
    assert "delivery dlv_" in house.output.logged.getvalue()
    assert "eyJ" not in house.output.logged.getvalue()  # no signature
    assert house.events
    assert house.output.leaks(house.canaries) == {}


async def test_a_plain_sender_keeps_its_secrets_out_of_all_but_the_database(house: House) -> None:
    sender = house.sender()
    await run_sender(house, sender)
    await run_refusals(house, sender)
    assert house.canaries.found_in(await everything_in(house)) == {"token", "credentials", "body"}
    await sender.close()
    assert house.output.leaks(house.canaries) == {}


async def test_what_the_database_says_of_a_refused_row_goes_nowhere(house: House) -> None:
    # For as long as both together it is tried to settle what cannot be; a busy machine attempts it
    # slowly.
    timeout, margin = timedelta(seconds=0.5), timedelta(seconds=3)
    await run_storage_errors(house, house.sender(timeout=timeout, lease_margin=margin))
    assert "could not be settled" in house.output.logged.getvalue()
    assert house.output.leaks(house.canaries) == {}


async def test_a_sender_without_the_keys_says_nothing_of_what_it_cannot_open(house: House) -> None:
    sealing = house.sender(secrets=house.secrets)
    await sealing.open()
    await sealing.subscribe("task-1", house.config("/200"), version="1.0")
    await sealing.notify(house.update("task-1"))
    await sealing.close()
    other = house.sender(secrets=SecretKeys.generate())
    await other.open()
    await other.worker.run_once()
    await house.output.refused("deliveries", other.deliveries("task-1"))
    await house.output.refused("configs", other.configs_to_send_with("task-1"))
    house.output.note("rotation", await SecretsAdmin(other._database).rotate(house.secrets))
    await other.close()
    assert "not sent" in house.output.logged.getvalue()
    assert house.output.leaks(house.canaries) == {}


@IN_SQLITE
async def test_a_signing_service_may_say_what_it_wants_in_its_errors(house: House) -> None:
    class Kms:
        public_jwk = public_jwk(KeyRing.create(utc_now()).signing_key(utc_now()))

        async def sign(self, data: bytes) -> bytes:
            raise RuntimeError(house.canaries.plant("the service's password"), data)

    sender = PushSender(issuer=ISSUER, keys=Kms(), database=house.database, allow=["127.0.0.1:*"])
    await sender.open()
    await sender.subscribe("task-1", house.config("/200"), version="1.0")
    await sender.notify(house.update("task-1"))
    await sender.worker.run_once()
    await sender.close()
    assert "did not sign: RuntimeError" in house.output.logged.getvalue()
    assert house.output.leaks(house.canaries) == {}


ANSWERS_OF_A_TOKEN_ENDPOINT = {
    "a token": (200, {"access_token": "{token}", "token_type": "bearer"}),
    "an echo as the error": (400, {"error": "{echo}"}),
    "an echo in a list": (400, {"error": ["{echo}"]}),
    "an echo as the type": (200, {"access_token": "{token}", "token_type": "{echo}"}),
    "a token with a line break": (200, {"access_token": "{token}\r\nX: y", "token_type": "bearer"}),
    "no JSON": (200, None),
}


@IN_SQLITE
@pytest.mark.parametrize(
    ("answer", "proves"),
    [("a token", False), *((answer, True) for answer in ANSWERS_OF_A_TOKEN_ENDPOINT)],
)
async def test_what_the_operator_configured_comes_out_nowhere(
    house: House, aiohttp_server: AiohttpServer, answer: str, proves: bool
) -> None:
    """Not credentials by destination, queries of URLs, the proxy's password or an alert's token."""
    plant = house.canaries.plant
    access_token = plant("access token")
    arrived: list[str] = []

    async def issue(request: web.Request) -> web.Response:
        status, members = ANSWERS_OF_A_TOKEN_ENDPOINT[answer]
        echo = f"{dict(request.headers)} {await request.text()}"
        if members is None:
            return web.Response(text=echo)
        text = json.dumps(members).replace("{token}", access_token)
        return web.Response(status=status, text=text.replace("{echo}", json.dumps(echo)[1:-1]))

    async def hook(request: web.Request) -> web.Response:
        proof = request.query.get("validationToken")
        if proof is not None:
            house.canaries.plant(f"proof {len(house.canaries.planted)}", proof)
            return web.Response(text=proof if proves else f"no {proof}")
        arrived.append(request.headers["Authorization"])
        echo = f"{dict(request.headers)} {await request.text()}"
        return web.Response(status=int(request.path.strip("/")), reason="OK", text=echo)

    app = web.Application()
    app.router.add_post("/token", issue)
    app.router.add_route("*", "/{path:.*}", hook)
    server = await aiohttp_server(app, access_log=None)
    base = f"http://127.0.0.1:{server.port}"
    oauth = OAuthClient(
        token_url=f"{base}/token?key={plant('query of the token endpoint')}",
        client_id="us",
        client_secret=plant("client secret"),
    )
    api_key = Authentication(schemes=("ApiKey",), credentials=plant("API key"))
    credentials = [
        DestinationCredentials(origin=base, authentication=api_key, oauth=oauth),
        DestinationCredentials(origin=house.webhook, authentication=api_key),
    ]
    sender = house.sender(
        secrets=house.secrets,
        seal_bodies=False,
        credentials=credentials,
        proxy=f"http://us:{plant('password of the proxy')}@127.0.0.1:{server.port}",
        verify_ownership=True,
        alerts=AlertOptions(
            log=True,
            webhook=f"{base}/200?a={plant('query of the alerts')}",
            webhook_token=plant("token of the alerts"),
        ),
    )
    note = house.output.note
    await sender.open()
    query = plant("query of a webhook")
    urls = [f"{base}/{status}?key={query}" for status in (200, 302, 400, 401, 410, 500)]
    for number, url in enumerate([*urls, f"{house.webhook}/500?key={query}"]):
        await sender.subscribe(f"task-{number}", {"url": url}, version="1.0")
        await sender.notify(house.update(f"task-{number}"))
    for _ in range(3):
        await sender.worker.run_once()
    echoes = b""
    for summary in await sender.outbox.find():
        note("outbox", summary)
        report = await sender.outbox.show(summary.id)
        assert report is not None
        note("outbox", report)
        echoes += b"".join(attempt.answer or b"" for attempt in report.attempts)
    # A signature states the URL, which is stored besides.
    assert house.canaries.found_in(echoes) <= {"body", "query of a webhook"}
    note("events", house.events)
    note("options", sender.options)
    note("credentials", credentials)
    note("metrics", (await sender.metrics.page()).body.decode())
    await sender.close()
    assert (f"Bearer {access_token}" in arrived) == (proves and answer == "a token")
    assert house.events
    assert house.output.leaks(house.canaries) == {}


async def test_no_page_of_the_dashboard_shows_a_secret(
    house: House, aiohttp_client: AiohttpClient
) -> None:
    sender = house.sender(secrets=house.secrets)
    await run_sender(house, sender)
    site = dashboard_app(
        sender.outbox, sender.subscription_admin, access=DashboardAccess(), issuer=ISSUER
    )
    browser = await aiohttp_client(site.app())
    paths = ["/", "/deliveries", "/deliveries?state=dead", "/destinations", "/keys"]
    of_api = ("overview", "deliveries", "queues")
    paths += ["/subscriptions", "/queues", *(f"/api/v1/{each}" for each in of_api)]
    deliveries = await sender.outbox.find()
    for summary in deliveries:
        for below in ("", "/api/v1"):
            paths.append(f"{below}/deliveries/{summary.id}")
            paths.append(f"{below}/subscriptions/{summary.subscription_id}")
    for path in paths:
        async with browser.get(path) as page:
            assert page.status == 200
            house.output.note(f"dashboard {path}", await page.text())
    # What webhooks answered is an echo of the request here: shown without its secrets.
    echoes = ""
    for summary in deliveries:
        async with browser.get(f"/deliveries/{summary.id}?answers=1") as page:
            echoes += (await page.text()).partition("The webhook's answers")[2]
    assert "X-A2A-Token" in echoes
    assert house.canaries.found_in(echoes) <= {"body"}
    assert "eyJ" not in echoes
    await sender.close()
    assert set().union(*house.output.leaks(house.canaries).values()) <= {"body"}


# --- the commands ------------------------------------------------------------------------------


async def run_command(
    house: House, group: click.Group, *arguments: str, **environment: Any
) -> Result:
    """Run a command beside the test's loop, and keep all that it printed or raised."""
    runner = CliRunner()
    result = await asyncio.to_thread(runner.invoke, group, arguments, env=environment)
    where = " ".join(map(str, arguments))
    house.output.note(where, result.output)
    if result.exc_info is not None:
        house.output.note(where, "".join(traceback.format_exception(*result.exc_info)))
        house.output.note(where, result.exception)
    return result


async def test_no_command_prints_a_secret(house: House) -> None:
    sender = house.sender(secrets=house.secrets)
    await run_sender(house, sender)
    [delivery, *_] = await sender.outbox.find()
    await sender.close()
    environment = {
        "PUSHKIT_DATABASE": house.database,
        "PUSHKIT_KEYS": str(house.keys),
        "PUSHKIT_KEY_PASSPHRASE": house.canaries.planted["passphrase"].decode(),
        "PUSHKIT_SECRET_KEYS_FILE": str(house.folder / "secret.keys"),
    }

    async def run(*arguments: str, **changed: Any) -> Result:
        return await run_command(house, pushkit.cli.main.cli, *arguments, **(environment | changed))

    body = house.folder / "body.json"
    body.write_text(
        '{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
    )
    send = ("send", str(body), "--issuer", ISSUER, "--allow", "127.0.0.1:*", "--token", house.token)
    assert (await run(*send, "--to", f"{house.webhook}/200?key={house.token}")).exit_code == 0
    assert (await run(*send, "--to", f"{house.webhook}/401")).exit_code == 1
    for arguments in (
        ("keys", "list", "--json"),
        ("keys", "export"),
        ("keys", "export", "--format", "pem"),
        ("keys", "new"),
        ("keys", "rotate"),
        ("outbox", "list", "--json"),
        ("outbox", "show", delivery.id),
        ("outbox", "show", delivery.id, "--json"),
        ("outbox", "stats"),
        ("outbox", "redrive", "--all"),
        ("subscriptions", "list"),
        ("subscriptions", "list", "--json"),
        ("subscriptions", "show", delivery.subscription_id),
        ("subscriptions", "show", delivery.subscription_id, "--json"),
        ("subscriptions", "pause", "--all"),
        ("subscriptions", "disable", "--all"),
        ("subscriptions", "enable", "--all", "--resend"),
        ("subscriptions", "test", "--all"),
        ("subscriptions", "remove", "--all", "--yes"),
        ("secrets", "status"),
        ("secrets", "rotate"),
    ):
        assert (await run(*arguments)).exit_code == 0, arguments
    broken = house.folder / "broken.keys"
    broken.write_text(f"{house.token}\n")
    broken.chmod(0o600)
    broken_variable: dict[str, Any] = {
        "PUSHKIT_SECRET_KEYS_FILE": None,
        "PUSHKIT_SECRET_KEYS": house.token,
    }
    for arguments, changed in (
        (("keys", "list"), {"PUSHKIT_KEY_PASSPHRASE": house.token}),
        (("keys", "list"), {"PUSHKIT_KEYS": str(broken)}),
        (("secrets", "rotate"), {"PUSHKIT_SECRET_KEYS_FILE": str(broken)}),
        (("secrets", "rotate"), broken_variable),
        (("outbox", "show", delivery.id, "--body"), broken_variable),
        (("worker", "--issuer", ISSUER), broken_variable),
        (
            ("worker", "--issuer", ISSUER),
            {"PUSHKIT_DATABASE": f"postgresql://u:{house.token}@127.0.0.1:1/x"},
        ),
    ):
        assert (await run(*arguments, **changed)).exit_code == 1, (arguments, changed)
    assert house.output.leaks(house.canaries) == {}


# --- the receiver ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def receiving(house: House, seen: list[Notification]) -> AsyncIterator[str]:
    """Run a receiver that trusts the house's sender; yield where it listens."""
    sender = TrustedSender(
        name="agent",
        issuer=ISSUER,
        jwks_file=house.folder / "jwks.json",
        tokens=[house.token],
        tasks=TaskPolicy.ANY,
    )
    house.output.note("trusted sender", sender)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found = Receiver(url=url, senders=[sender], database=house.folder / "inbox.db")
    house.output.note("receiver", found)

    @found.on_update()
    async def noted(notification: Notification) -> None:
        seen.append(notification)
        raise RuntimeError("this callback fails")

    runner = web.AppRunner(found.app())
    await runner.setup()
    await web.SockSite(runner, listener).start()
    house.output.note("expectation", await found.expect(version="1.0"))
    site = dashboard_of(found, access=DashboardAccess())
    async with TestClient(TestServer(site.app())) as browser:
        yield f"{url}/a2a/push"
        await look_at_every_page(house, found, browser)
    await runner.cleanup()


async def look_at_every_page(
    house: House, found: Receiver, browser: TestClient[web.Request, web.Application]
) -> None:
    """Keep what the pages and the API of a receiver's dashboard show, all but the bodies."""
    paths = ["/", "/notifications", "/queues", "/callbacks", "/refusals", "/task?task=task-1"]
    paths += [f"/notifications/{each.id}" for each in await found.inbox.find()]
    async with browser.get("/api/v1/refusals") as answer:
        refused = (await answer.json())["refusals"]
    assert "invalid_token" in {each["code"] for each in refused}
    paths += [f"/refusals/{each['number']}" for each in refused]
    for path in (*paths, *(f"/api/v1{each}" for each in paths if each != "/"), "/api/v1/overview"):
        async with browser.get(path) as page:
            assert page.status == 200, path
            house.output.note(f"dashboard {path}", await page.text())


async def run_receiver(house: House) -> None:
    """Send to a receiver what it takes and what it refuses, and let a callback fail."""
    exported = await run_command(
        house,
        pushkit.cli.main.cli,
        "keys",
        "export",
        PUSHKIT_KEYS=str(house.keys),
        PUSHKIT_KEY_PASSPHRASE=house.canaries.planted["passphrase"].decode(),
    )
    (house.folder / "jwks.json").write_text(exported.stdout)
    seen: list[Notification] = []

    async with receiving(house, seen) as url:
        sender = house.sender(secrets=house.secrets)
        await sender.open()
        right = PushConfig(url=url, token=house.token)
        wrong = PushConfig(url=url, token=house.canaries.plant("wrong token"))
        for task_id, config in (("task-1", right), ("task-2", wrong)):
            await sender.subscribe(task_id, config, version="1.0")
            await sender.notify(house.update(task_id))
        while await sender.worker.run_once():
            pass
        await eventually(lambda: seen)
        house.output.note("notification", seen[0])
        assert [found.last_status for found in await sender.deliveries("task-2")] == [401]
        await sender.close()
        await post_what_is_refused(house, url)


@IN_SQLITE
async def test_a_receiver_tells_nobody_what_it_was_sent(house: House) -> None:
    await run_receiver(house)
    assert "refused 401" in house.output.logged.getvalue()
    assert "this callback fails" in house.output.logged.getvalue()
    assert house.output.leaks(house.canaries) == {}
    # And its database holds no token.
    stored = b"".join(path.read_bytes() for path in house.folder.glob("inbox.db*"))
    assert house.canaries.found_in(stored) == {"body"}


async def post_what_is_refused(house: House, url: str) -> None:
    """Post what no sender posts, with secrets in it, and keep the answers."""
    stolen = f"Bearer {house.canaries.plant('stolen credentials')}"
    bearer = ".".join(map(_segment, ({"alg": "none"}, {"iss": house.body}, house.token)))
    for body, headers in (
        (house.body, {}),
        (house.body, {"Authorization": stolen, "X-A2A-Token": house.token}),
        (house.body, {"Authorization": f"Bearer {bearer}", "X-A2A-Token": house.token}),
        (house.body, {"X-A2A-Token": house.token, "A2A-Notification-Token": f"{house.token}x"}),
        (json.dumps({house.body: house.body}), {"X-A2A-Signature": house.token}),
        (house.body * 100_000, {"Authorization": stolen}),
    ):
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=io.BytesIO(body.encode()), headers=headers) as answer,
        ):
            assert answer.status >= 400
            house.output.note("an answer", await answer.text())
            house.output.note("an answer", dict(answer.headers))


def _segment(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@IN_SQLITE
async def test_the_receivers_commands_print_no_secret(house: House) -> None:
    tokens = house.folder / "tokens.txt"
    tokens.write_text(f"{house.token}\n")
    good = f"""
        url = "https://client.example.com"
        database = "{house.folder / "inbox.db"}"
        [[senders]]
        name = "agent"
        issuer = "{ISSUER}"
        jwks_file = "jwks.json"
        tokens = ["{house.credentials}"]
    """
    path = house.folder / "receiver.toml"
    for text in (
        good,
        good.replace("tokens", "tokens_file").replace(f'["{house.credentials}"]', f'"{tokens}"'),
        good.replace("]", ""),
        good.replace(f'["{house.credentials}"]', f'"{house.credentials}"'),
        good.replace("tokens", "token"),
        good.replace('"agent"', f'"agent", "{house.credentials}"'),
        good.replace("https://client", f"https://user:{house.token}@client"),
    ):
        path.write_text(text)
        await run_command(house, receiver.cli.cli, "check", "--settings", "--config", str(path))
    assert house.output.leaks(house.canaries) == {}

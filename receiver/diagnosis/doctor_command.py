"""`receiver doctor`, which is `pushkit doctor` too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click

from pushkit.a2a import PushConfig, WireVersion, format_push_config
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.net.jwks_client import load_jwks
from pushkit.net.transport import ConnectionOptions
from pushkit.terminal.listening import listen_option, listening_at
from pushkit.terminal.options import (
    PATH,
    egress_options,
    out_options,
    refuse_given,
    variable_option,
)
from pushkit.terminal.output import FileKind, OutFile, example
from pushkit.url import host_and_port, masked_url
from receiver.diagnosis.by_itself import Expected
from receiver.diagnosis.checks import BODY_CHECKS, CHECKS
from receiver.diagnosis.report import (
    WRITTEN_AS,
    CheckOutcome,
    Examined,
    is_report,
    lines_of,
    summary,
)
from receiver.diagnosis.sender import (
    ARRIVAL_SECONDS,
    SCENARIOS,
    Drive,
    examine_sender,
    run_for_each,
)
from receiver.diagnosis.subject import ReceiverAtUrl, check_consent, words_of
from receiver.diagnosis.trial import SigningAgent, Trial, chosen, examine
from receiver.expectation import mint_token
from receiver.options import Schemes, load_signing_key, scheme_options

_PATIENCE = 30
_WATCHED = 60
_REPORT = FileKind("a report", is_report)
_OF_RECEIVERS = (
    *("keys_path", "issuer", "audience", "observe", "restart", "operated", "rounds", "deadline"),
)


@click.command(
    epilog=example(
        "pushkit keys new doctor.json; pushkit keys export --keys doctor.json --out jwks.json",
        "pushkit doctor http://127.0.0.1:9000/a2a/push --keys doctor.json --token abc…",
        "pushkit doctor http://127.0.0.1:9000/a2a/push --keys doctor.json --token abc… \\",
        "    --observe 'cat called.txt' --restart ./restart.sh --format junit --out report.xml",
        "pushkit doctor --sender --run ./notify-this-url.sh \\",
        "    --jwks https://agent.example.com/.well-known/jwks.json",
    )
)
@click.argument("url", required=False)
@click.option(
    "--sender", "of_sender", is_flag=True, help="Examine a sender, with webhooks that misbehave."
)
@click.option(
    "--run",
    "command",
    help="For --sender: a command that makes it notify the URL given as the last argument.",
)
@click.option(
    "--jwks",
    help="For --sender: its JWK Set, a URL or a file, to verify every signature. Without it, the"
    " report only says whether there is a signature.",
)
@scheme_options
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:0",
    help="For --sender: the address of the first webhook; the others take the next ports.",
)
@variable_option(
    "--keys",
    "keys_path",
    type=PATH,
    default=Path("keys.json"),
    envvar="PUSHKIT_KEYS",
    help="A key file whose keys the receiver trusts.",
)
@click.option("--token", help="The notification token that the receiver expects.")
@click.option(
    "--issuer", default="https://agent.example.com", help="The issuer that the receiver trusts."
)
@click.option("--audience", help="The URL that the receiver expects in `aud`.  [default: URL]")
@click.option(
    "--observe",
    help="A command that prints the delivery ids of all callbacks so far, one per line.",
)
@click.option(
    "--restart", help="A command that kills the receiver and starts it again on the same state."
)
@click.option(
    "--i-operate-this", "operated", is_flag=True, help="Confirm that the receiver is yours."
)
@click.option("--only", multiple=True, help="Run only this check; may be given several times.")
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=20, help="How often to crash the receiver."
)
@click.option(
    "--deadline", type=click.IntRange(1, 600), default=10, help="Seconds that a callback may take."
)
@click.option(
    "--patience",
    type=click.IntRange(1, 3600),
    help="Seconds that a receiver may wait for a slow body; or that a sender is watched."
    "  [default: 30; 60]",
)
@click.option("--format", "written_as", type=click.Choice(list(WRITTEN_AS)), default="text")
@out_options(says="Write the report to this file.")
@egress_options(ConnectionOptions)
def doctor(
    *,
    url: str | None,
    of_sender: bool,
    command: str | None,
    jwks: str | None,
    schemes: Schemes,
    address: str,
    keys_path: Path,
    token: str | None,
    issuer: str,
    audience: str | None,
    observe: str | None,
    restart: str | None,
    operated: bool,
    only: tuple[str, ...],
    rounds: int,
    deadline: int,
    patience: int | None,
    written_as: str,
    out: OutFile,
    connections: ConnectionOptions,
) -> None:
    """Examine the webhook receiver at URL from outside.

    Does it refuse and accept as it should? The receiver has to trust the keys of --keys (or the
    signatures of --scheme), the issuer and the token, and to expect every task. It is sent hundreds
    of requests, so it has to be on this machine, to echo a validationToken, or to be yours
    (--i-operate-this). Checks of callbacks and crashes need --observe and --restart; without them,
    the report lists these checks as unseen.

    With --sender, examine a sender instead, with webhooks that are slow, overloaded, gone or
    broken, each at its own URL. --run makes the sender notify each URL; without it, you do. With
    --jwks, every request is verified as a receiver would, including time and audience.

    The exit status is 1 if a promise is broken.
    """
    out.check(_REPORT)  # now, not after minutes
    if of_sender:
        if url is not None:
            raise click.UsageError("expected URL and --token; or --sender")
        refuse_given(*_OF_RECEIVERS, only_for="a receiver, without --sender")
        patience = patience or _WATCHED
        subject = f"a sender, watched for {patience} s"
        results = _of_sender(
            words_of("--run", command),
            address,
            [*chosen(SCENARIOS, only)],
            expected=_expected(jwks, schemes, connections),
            token=token or mint_token(),
            patience=patience,
        )
    elif url is None or token is None:
        raise click.UsageError("expected URL and --token; or --sender")
    else:
        refuse_given("command", "jwks", "address", only_for="--sender")
        subject, checks = masked_url(url), chosen({**CHECKS, **BODY_CHECKS}, only)
        examined = ReceiverAtUrl(url, observe=observe, restart=restart, connections=connections)
        agent = SigningAgent(
            webhook_url=audience or url,
            issuer=issuer,
            token=token,
            key=load_signing_key(keys_path) if schemes.by_key else generate_key(Algorithm.ES256),
            schemes=frozenset(schemes.names),
            webhook_secrets=schemes.webhook_secrets,
        )
        results = examine(
            checks,
            lambda: Trial(
                subject=examined,
                agent=agent,
                deadline=timedelta(seconds=deadline),
                rounds=rounds,
                patience=timedelta(seconds=patience or _PATIENCE),
            ),
        )
        asyncio.run(check_consent(examined, operated=operated))
        if reason := asyncio.run(examined.unreachable()):
            raise ConfigError(f"the receiver cannot be reached: {reason}")
    is_shown = written_as == "text" and out.path is None
    found = asyncio.run(_collect(results, shown=is_shown))
    if not is_shown:
        out.write(f"{WRITTEN_AS[written_as](subject, found)}\n".encode(), _REPORT)
    click.echo(summary(found), err=written_as != "text" and out.path is None)
    if any(result.outcome is CheckOutcome.FAILED for result in found):
        sys.exit(1)


def _expected(
    jwks: str | None, schemes: Schemes, connections: ConnectionOptions
) -> Callable[[], Awaitable[Expected]] | None:
    """Return what loads the keys, once the sender runs; None if nothing is to be verified."""
    if jwks is None and schemes.by_key:
        if not schemes.is_usual:
            raise click.UsageError("--scheme: expected --jwks, the sender's keys")
        return None

    async def load() -> Expected:
        keys = await load_jwks(jwks, connections=connections) if jwks and schemes.by_key else None
        return Expected(keys=keys, schemes=schemes, now=utc_now())

    return load


async def _of_sender(
    words: Sequence[str],
    address: str,
    names: Sequence[str],
    *,
    expected: Callable[[], Awaitable[Expected]] | None,
    token: str,
    patience: int,
) -> AsyncIterator[Examined]:
    host, port = listen_option(address)

    async def show(urls: Mapping[str, str]) -> None:
        click.echo(
            f"make your sender send one update to each of these push configs within"
            f" {max(patience, ARRIVAL_SECONDS)} s; it is then watched for {patience} s:",
            err=True,
        )
        for name, url in urls.items():
            config = format_push_config(PushConfig(url=url, token=token), WireVersion.V1_0)
            click.echo(f"  {name:14} {json.dumps(config)}", err=True)

    async with contextlib.AsyncExitStack() as stack:
        listeners = {
            name: stack.enter_context(listening_at(host_and_port(host, port and port + number)))
            for number, name in enumerate(names)
        }
        drive: Drive = show
        if words:
            drive = await stack.enter_async_context(run_for_each(words, token))
            click.echo(f"running {words[0]}, and watching the sender for {patience} s", err=True)
        within = timedelta(seconds=patience)
        async for result in examine_sender(
            listeners, drive, patience=within, driven=bool(words), expected=expected
        ):
            yield result


async def _collect(results: AsyncIterator[Examined], *, shown: bool) -> list[Examined]:
    """Collect results; print each as it comes, if they are shown."""
    found = []
    async for result in results:
        found.append(result)
        for line in lines_of(result) if shown else ():
            click.echo(line)
    return found

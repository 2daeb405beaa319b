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
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.net.jwks_client import load_jwks
from pushkit.terminal.listening import listen_option, listening_at
from pushkit.terminal.options import PATH, variable_option
from pushkit.terminal.output import example
from pushkit.url import host_and_port, masked_url
from receiver.doctor.examination import examine
from receiver.doctor.report import Outcome, Result, as_json, as_junit, as_text, summary
from receiver.doctor.scenarios import SCENARIOS
from receiver.doctor.sender import Drive, examine_sender, run_for_each
from receiver.doctor.signatures import Signatures
from receiver.doctor.subject import Examined, check_consent, words_of
from receiver.expecting import mint_token
from receiver.options import Schemes, load_signing_key, scheme_options
from receiver.testing import SigningAgent

_PATIENCE = 30
_WATCHED = 60


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
    "--sender", "of_sender", is_flag=True, help="Examine a sender, by webhooks that misbehave."
)
@click.option(
    "--run",
    "command",
    help="For --sender: a command that has it notify the URL that is its last argument.",
)
@click.option(
    "--jwks",
    help="For --sender: its JWK Set, a URL or a file; every signature must hold. Without it the"
    " report says only whether there is one.",
)
@scheme_options
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:0",
    help="For --sender: where the first webhook listens; the others at the ports after it.",
)
@variable_option(
    "--keys",
    "keys_path",
    type=PATH,
    default=Path("keys.json"),
    envvar="PUSHKIT_KEYS",
    help="A key file whose keys the receiver trusts.",
)
@click.option("--token", help="The token that it has handed out.")
@click.option("--issuer", default="https://agent.example.com", help="The `iss` it trusts.")
@click.option("--audience", help="The URL that it expects in `aud`.  [default: URL]")
@click.option("--observe", help="A command that prints the ids that were called back, one a line.")
@click.option("--restart", help="A command that kills it and starts it again on the same state.")
@click.option("--i-operate-this", "operated", is_flag=True, help="It is yours, wherever it is.")
@click.option("--only", multiple=True, help="One check; may stand several times.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=20, help="Crashes.")
@click.option(
    "--deadline", type=click.IntRange(1, 600), default=10, help="Seconds that a callback may take."
)
@click.option(
    "--patience",
    type=click.IntRange(1, 3600),
    help="Seconds after which a receiver should have enough of a body that drips in; for which a"
    " sender is watched.  [default: 30; 60]",
)
@click.option(
    "--format", "written_as", type=click.Choice(["text", "json", "junit"]), default="text"
)
@click.option("--out", type=PATH, help="Write it there.")
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
    out: Path | None,
) -> None:
    """Examine the webhook receiver at URL from outside: what it accepts and should not.

    It has to trust the key file's keys, the issuer and the token, and to expect every task; or,
    with --scheme, other signatures. It is sent hundreds of requests, so it has to be on this
    machine, to echo a validationToken, or to be yours. What HTTP does not show needs --observe and
    --restart; without them the report lists what was not seen.

    With --sender, examine a sender instead: webhooks that are slow, overloaded, gone or broken,
    each at a URL of its own, and what it makes of them. --run has it notify each URL; without, you
    do. With --jwks every signature is verified as a receiver would, time and audience included.
    Exit status 1 if a promise is broken.
    """
    if of_sender:
        subject = "a sender"
        results = _of_sender(
            words_of("--run", command),
            address,
            signatures=_signatures(jwks, schemes),
            token=token or mint_token(),
            only=only,
            patience=patience or _WATCHED,
        )
    elif jwks is not None:
        raise click.UsageError("--jwks: expected with --sender")
    elif url is None or token is None:
        raise click.UsageError("expected URL and --token; or --sender")
    else:
        subject = masked_url(url)
        results = examine(
            Examined(url, observe=observe, restart=restart),
            SigningAgent(
                webhook_url=audience or url,
                issuer=issuer,
                token=token,
                key=load_signing_key(keys_path)
                if schemes.by_key
                else generate_key(Algorithm.ES256),
                schemes=frozenset(schemes.names),
                webhook_secrets=schemes.webhook_secrets,
            ),
            only=only,
            deadline=timedelta(seconds=deadline),
            patience=timedelta(seconds=patience or _PATIENCE),
            rounds=rounds,
        )
        asyncio.run(check_consent(url, operated=operated))
    found = asyncio.run(_told(results, aloud=written_as == "text" and out is None))
    _report(subject, found, written_as=written_as, out=out)


def _signatures(jwks: str | None, schemes: Schemes) -> Callable[[], Awaitable[Signatures]] | None:
    """Return what gets the keys, once the sender runs; None where nothing is to be verified."""
    if jwks is None and schemes.by_key:
        if not schemes.is_usual:
            raise click.UsageError("--scheme: expected --jwks, the sender's keys")
        return None

    async def get() -> Signatures:
        return Signatures(keys=await load_jwks(jwks) if jwks else None, schemes=schemes)

    return get


async def _of_sender(
    words: Sequence[str],
    address: str,
    *,
    signatures: Callable[[], Awaitable[Signatures]] | None,
    token: str,
    only: Sequence[str],
    patience: int,
) -> AsyncIterator[Result]:
    names = [name for name in SCENARIOS if not only or name in only]
    if unknown := sorted(set(only) - set(SCENARIOS)):
        expected = ", ".join(SCENARIOS)
        raise ConfigError(f"--only: found {unknown[0]!r}, expected some of {expected}")
    host, port = listen_option(address)

    async def show(urls: Mapping[str, str]) -> None:
        said = "have your sender send one update to each of these push configs"
        click.echo(f"{said}, within {patience} s:", err=True)
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
            click.echo(f"watching it for {patience} s", err=True)
        within = timedelta(seconds=patience)
        async for result in examine_sender(
            listeners, drive, patience=within, driven=bool(words), signatures=signatures
        ):
            yield result


async def _told(results: AsyncIterator[Result], *, aloud: bool) -> list[Result]:
    """Collect results; aloud, say each as it comes."""
    found = []
    async for result in results:
        found.append(result)
        for line in as_text(result) if aloud else ():
            click.echo(line)
    return found


def _report(subject: str, results: Sequence[Result], *, written_as: str, out: Path | None) -> None:
    """Report; exit with 1 if a promise is broken. Raises ConfigError: no file can be written."""
    if written_as == "json":
        text = as_json(subject, results)
    elif written_as == "junit":
        text = as_junit(subject, results)
    else:
        text = "\n".join([*(line for each in results for line in as_text(each))])
    if out is not None:
        try:
            out.write_text(f"{text}\n", "utf-8")
        except OSError as exc:
            raise ConfigError(f"--out: {out}: {exc.strerror}") from exc
    elif written_as != "text":
        click.echo(text)
    click.echo(summary(results), err=written_as != "text" and out is None)
    if any(result.outcome is Outcome.FAILED for result in results):
        sys.exit(1)

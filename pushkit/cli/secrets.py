"""`pushkit secrets`: the keys that tokens, credentials and bodies are encrypted with at rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from pushkit.cli.databases import Outbox, outbox_option
from pushkit.errors import ConfigError, SealedSecretError
from pushkit.secrets.resealing import SecretsAdmin
from pushkit.secrets.sealing import SecretKey, SecretKeys, add_secret_key
from pushkit.terminal.command import json_option
from pushkit.terminal.options import PATH
from pushkit.terminal.output import example, table

_outbox = outbox_option(SecretsAdmin)
_SHOWN = 5
_THEN = (
    "restart senders and workers; then `pushkit secrets rotate` encrypts with the first key what is"
    " stored already; keep a copy of the keys, without which what they encrypted is lost"
)


@click.group(
    epilog=example(
        "pushkit secrets generate secret.keys",
        "export PUSHKIT_SECRET_KEYS_FILE=secret.keys",
        "pushkit secrets rotate --database outbox.db",
        "pushkit secrets status --database outbox.db",
    )
)
def secrets() -> None:
    """Encrypt tokens, credentials and bodies in the database, and rotate the keys for that.

    The keys come from PUSHKIT_SECRET_KEYS, or from the file that PUSHKIT_SECRET_KEYS_FILE names:
    the first one encrypts, all of them decrypt.
    """


@secrets.command(epilog=example("pushkit secrets generate secret.keys"))
@click.argument("file", required=False, type=PATH)
@click.option("--standby", is_flag=True, help="In FILE, put it last: it does not encrypt yet.")
def generate(file: Path | None, *, standby: bool) -> None:
    """Make a key: in FILE, as its first, or on standard output without one.

    Making it encrypts nothing: senders must be told of it, and what is stored be rotated. A running
    sender reads its keys when it starts. Where several processes share the database, give
    all of them the new key with --standby first: none meets a secret that it cannot read.
    """
    if file is None:
        if standby:
            raise click.UsageError("--standby goes with FILE")
        click.echo(SecretKey.generate().to_text())
        click.echo(
            "still to do: put it into PUSHKIT_SECRET_KEYS of every sender, worker and command,"
            f" first to encrypt with it; {_THEN}",
            err=True,
        )
        return
    key = add_secret_key(file, standby=standby)
    use = "decrypts with it; once it stands first, it encrypts" if standby else "encrypts with it"
    click.echo(f"key {key.id} is in {file}: whoever reads the file from now on {use}")
    named = os.environ.get("PUSHKIT_SECRET_KEYS_FILE")
    if named is None or Path(named).resolve() != file.resolve():
        click.echo(
            f"still to do: set PUSHKIT_SECRET_KEYS_FILE={file.resolve()} for every sender, worker"
            f" and command; {_THEN}",
            err=True,
        )
    else:
        click.echo(f"still to do: {_THEN}", err=True)


@secrets.command(epilog=example("pushkit secrets rotate --database outbox.db --bodies"))
@_outbox
@click.option("--bodies", is_flag=True, help="Encrypt bodies that are plain, too.")
def rotate(*, outbox: Outbox[SecretsAdmin], bodies: bool) -> None:
    """Encrypt with the first key whatever is plain or encrypted with another one.

    In small batches beside the traffic. Exit status 0 says that the other keys can go.
    """
    keys = SecretKeys.from_environment()
    if keys is None:
        raise ConfigError("no secret keys: set PUSHKIT_SECRET_KEYS or PUSHKIT_SECRET_KEYS_FILE")
    rotated = outbox.change(lambda admin: admin.rotate(keys, bodies=bodies))
    click.echo(
        f"encrypted {rotated.secrets} tokens and credentials, and {rotated.bodies} bodies,"
        f" with key {keys.ids[0]}"
    )
    if rotated.unopened:
        shown = [f"  {reason}" for reason in rotated.unopened[:_SHOWN]]
        raise SealedSecretError(
            "\n".join([f"{len(rotated.unopened)} cannot be decrypted, and stay:", *shown])
        )
    if rotated.traces:
        click.echo(
            "warning: the write-ahead log was being read, and still holds what was there before:"
            " run it again",
            err=True,
        )
    if rotated.held:
        raise ConfigError(f"{rotated.held} rows were in use all the time: run it again")


@secrets.command(epilog=example("pushkit secrets status --database outbox.db --json"))
@_outbox
@json_option
def status(*, outbox: Outbox[SecretsAdmin], as_json: bool) -> None:
    """Show how much is encrypted with which key."""
    keys = SecretKeys.from_environment()
    found = outbox.look(lambda admin: admin.status())
    here = keys.ids if keys else ()
    known = dict.fromkeys([*here, *found.secrets, *found.bodies])
    documents = [
        {
            "key": key,
            "state": _state(key, here),
            "tokens_and_credentials": found.secrets.get(key, 0),
            "bodies": found.bodies.get(key, 0),
        }
        for key in known
    ]
    if as_json:
        click.echo(json.dumps(documents, indent=2))
        return
    rows = (["-" if cell is None else str(cell) for cell in each.values()] for each in documents)
    click.echo(table(("KEY", "STATE", "TOKENS AND CREDENTIALS", "BODIES"), *rows))


def _state(key: str | None, here: tuple[str, ...]) -> str:
    if key is None:
        return "plain"
    if key not in here:
        return "missing here"
    return "encrypts" if key == here[0] else "decrypts"

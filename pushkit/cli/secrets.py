"""`pushkit secrets`: the keys that encrypt tokens, credentials, bodies and answers at rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from pushkit.cli.databases import Outbox, outbox_option
from pushkit.errors import ConfigError, SealedSecretError
from pushkit.secrets.sealing import SecretKey, SecretKeys, add_secret_key
from pushkit.secrets.vault import SecretsAdmin
from pushkit.terminal.command import json_option
from pushkit.terminal.options import PATH
from pushkit.terminal.output import example, table

_outbox = outbox_option(SecretsAdmin)
_SHOWN = 5
_PROMOTE = "restart senders and workers; move its line to the front of the file; "
_THEN = (
    "restart senders and workers; run `pushkit secrets rotate` to encrypt what is stored already;"
    " keep a copy of the keys, without which encrypted data is lost"
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
    """Encrypt what the database stores, and rotate the keys.

    This is for tokens, credentials and bodies. The keys are in PUSHKIT_SECRET_KEYS or in the file
    that PUSHKIT_SECRET_KEYS_FILE names: the first key encrypts, all of them decrypt.
    """


@secrets.command(epilog=example("pushkit secrets generate secret.keys"))
@click.argument("file", required=False, type=PATH)
@click.option(
    "--standby", is_flag=True, help="Put the key last in FILE, where it does not encrypt yet."
)
def generate(file: Path | None, *, standby: bool) -> None:
    """Make a key, as the first one in FILE or on standard output.

    This encrypts nothing yet: senders read their keys when they start, and `rotate` encrypts what
    is stored. If several processes share the database, first give all of them the new key with
    --standby, so that none of them finds a secret that it cannot decrypt.
    """
    if file is None:
        if standby:
            raise click.UsageError("--standby is only for a FILE")
        click.echo(SecretKey.generate().to_text())
        click.echo(
            "still to do: add the key to PUSHKIT_SECRET_KEYS of every sender, worker and command,"
            f" in first place to encrypt with it; {_THEN}",
            err=True,
        )
        return
    key = add_secret_key(file, standby=standby)
    use = "decrypt with it, and encrypt once it is first" if standby else "encrypt with it"
    click.echo(f"key {key.id} is in {file}: processes that start from now on {use}")
    then = _PROMOTE + _THEN if standby else _THEN
    named = os.environ.get("PUSHKIT_SECRET_KEYS_FILE")
    if named is None or Path(named).resolve() != file.resolve():
        click.echo(
            f"still to do: set PUSHKIT_SECRET_KEYS_FILE={file.resolve()} for every sender, worker"
            f" and command; {then}",
            err=True,
        )
    else:
        click.echo(f"still to do: {then}", err=True)


@secrets.command(epilog=example("pushkit secrets rotate --database outbox.db --bodies"))
@_outbox
@click.option("--bodies", is_flag=True, help="Also encrypt plain bodies.")
@click.option(
    "--vacuum",
    is_flag=True,
    help="Also write the SQLite file anew, so that no unused part of it holds a previous value."
    " Senders and workers wait meanwhile.",
)
def rotate(*, outbox: Outbox[SecretsAdmin], bodies: bool, vacuum: bool) -> None:
    """Encrypt what is stored with the first key.

    This includes what is plain, except bodies without --bodies, and what is encrypted with another
    key. Senders and workers may run meanwhile. After exit status 0, the other keys are no longer
    needed.
    """
    keys = SecretKeys.from_environment()
    if keys is None:
        raise ConfigError("no secret keys: set PUSHKIT_SECRET_KEYS or PUSHKIT_SECRET_KEYS_FILE")
    rotated = outbox.change(lambda admin: admin.rotate(keys, bodies=bodies, vacuum=vacuum))
    click.echo(
        f"encrypted {rotated.secrets} tokens and credentials, {rotated.bodies} bodies and"
        f" {rotated.answers} answers with key {keys.ids[0]}"
    )
    if rotated.unopened:
        shown = [f"  {reason}" for reason in rotated.unopened[:_SHOWN]]
        raise SealedSecretError(
            "\n".join([f"{len(rotated.unopened)} cannot be decrypted, and are unchanged:", *shown])
        )
    if rotated.traces:
        click.echo(
            "warning: the database was in use, and still contains previous data, at least in its"
            " write-ahead log: run this again",
            err=True,
        )
    if rotated.held:
        raise ConfigError(f"{rotated.held} rows were in use all the time: run this again")


@secrets.command(epilog=example("pushkit secrets status --database outbox.db --json"))
@_outbox
@json_option
def status(*, outbox: Outbox[SecretsAdmin], as_json: bool) -> None:
    """Show how much is encrypted with which key."""
    keys = SecretKeys.from_environment()
    found = outbox.look(lambda admin: admin.status())
    own = keys.ids if keys else ()
    known = dict.fromkeys([*own, *found.secrets, *found.bodies, *found.answers])
    documents = [
        {
            "key": key,
            "state": _state(key, own),
            "tokens_and_credentials": found.secrets.get(key, 0),
            "bodies": found.bodies.get(key, 0),
            "answers": found.answers.get(key, 0),
        }
        for key in known
    ]
    if as_json:
        click.echo(json.dumps(documents, indent=2))
        return
    rows = (["-" if cell is None else str(cell) for cell in each.values()] for each in documents)
    click.echo(table(("KEY", "STATE", "TOKENS AND CREDENTIALS", "BODIES", "ANSWERS"), *rows))


def _state(key: str | None, own: tuple[str, ...]) -> str:
    if key is None:
        return "plain"
    if key not in own:
        return "missing here"
    return "encrypts" if key == own[0] else "decrypts"

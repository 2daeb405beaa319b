"""`pushkit keys`: make, import, list, rotate, use, revoke and export signing keys."""

from __future__ import annotations

import json
import shlex
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click

from pushkit.cli.options import KeyFile, key_file_options, read_passphrase
from pushkit.clock import JWKS_MAX_AGE, LONGEST_JWKS_MAX_AGE, utc_now
from pushkit.delivery.documents import KeyDocument, key_document
from pushkit.errors import KeyFileError
from pushkit.files import read_file
from pushkit.keys.jwk import (
    Algorithm,
    SigningKey,
    VerificationKey,
    is_public_pem,
    public_pem,
    signing_key_from_pem,
)
from pushkit.keys.jwks import is_jwks, jwks_document
from pushkit.keys.ring import KeyRing, KeyState, command_to_rotate, in_seconds
from pushkit.terminal.command import json_option
from pushkit.terminal.options import FILE, PATH, is_given, out_options, read_by
from pushkit.terminal.output import FileKind, OutFile, columns, example, moment, table_of
from pushkit.webui.api import json_of

_DEFAULT_MAX_AGE_SECONDS: Final = JWKS_MAX_AGE // timedelta(seconds=1)
_MAX_MAX_AGE_SECONDS: Final = LONGEST_JWKS_MAX_AGE // timedelta(seconds=1)
_ALGORITHMS: Final = click.Choice([*(each.value for each in Algorithm), "Ed25519"])
_algorithm = read_by(Algorithm.parse)
_algorithm_option = click.option(
    "--alg",
    "algorithm",
    type=_ALGORITHMS,
    callback=_algorithm,
    help="The signature algorithm.  [default: the file's, ES256 for a new one]",
)


def _signs(key: KeyDocument) -> str | None:
    if key.state is not KeyState.ACTIVE:
        return None
    return "now" if key.signs else f"where {key.alg} is asked for"


_COLUMNS: Final = columns("kid alg state", SIGNS=_signs) | columns(
    "PUBLISHED=published_at ACTIVATES=activates_at RETIRES=retires_at REVOKED=revoked_at"
)


@click.group(
    epilog=example(
        "pushkit keys new keys.json          # the first key signs at once",
        "pushkit keys import agent.pem       # an existing key",
        "pushkit keys rotate                 # publishes the next key, which signs later",
        "pushkit keys list",
        "pushkit keys export > jwks.json     # public members only",
    )
)
def keys() -> None:
    """Make, rotate, revoke and export signing keys."""


@keys.command(epilog=example("pushkit keys new keys.json --alg ES256"))
@click.argument("file", required=False, type=PATH)
@key_file_options()
@_algorithm_option
@click.option(
    "--max-age",
    "max_age_seconds",
    type=click.IntRange(1, _MAX_MAX_AGE_SECONDS),
    help=f"How many seconds the JWK Set may be cached.  [default: {_DEFAULT_MAX_AGE_SECONDS}]",
)
def new(
    file: Path | None, key_file: KeyFile, algorithm: Algorithm | None, max_age_seconds: int | None
) -> None:
    """Make a key file, or add a key to an existing one.

    The first key of a new file signs at once. In an existing file, the new key is pending: it is
    published, and `rotate` makes it sign. The first key of another algorithm is scheduled; `use`
    makes it sign in place of the previous key.
    """
    key_file = replace(key_file, path=file or key_file.path)
    if not key_file.path.exists():
        max_age = timedelta(seconds=max_age_seconds or _DEFAULT_MAX_AGE_SECONDS)
        ring = key_file.create(
            KeyRing.create(utc_now(), algorithm or Algorithm.ES256, max_age=max_age)
        )
    elif max_age_seconds is not None:
        raise click.UsageError(f"--max-age is only for a new file, but {key_file.path} exists")
    else:
        ring = key_file.update(lambda ring: ring.add(utc_now(), algorithm))
    _print_key(key_file, ring, utc_now())


@keys.command(
    "import",
    epilog=example(
        "pushkit keys import agent.pem", "pushkit keys import rsa.pem --alg PS256 --kid key-1"
    ),
)
@click.argument("pem", type=FILE)
@key_file_options()
@_algorithm_option
@click.option("--kid", help="The `kid` under which verifiers know it.  [default: its thumbprint]")
@click.option(
    "--pem-passphrase-file", type=FILE, help="A file with the passphrase of an encrypted PEM."
)
def import_(
    *,
    pem: Path,
    key_file: KeyFile,
    algorithm: Algorithm | None,
    kid: str | None,
    pem_passphrase_file: Path | None,
) -> None:
    """Import a private key in PEM into a key file, new or existing.

    As with `new`, the first key of a new file signs at once, and further keys are pending. The PEM
    file is no longer needed afterwards.
    """
    key = _imported(pem, pem_passphrase_file, kid, algorithm)
    if key_file.path.exists():
        ring = key_file.update(lambda ring: ring.add(utc_now(), key=key))
    else:
        ring = key_file.create(KeyRing.create(utc_now(), key=key))
    _print_key(key_file, ring, utc_now())


def _imported(
    pem: Path, passphrase_file: Path | None, kid: str | None, algorithm: Algorithm | None
) -> SigningKey:
    secret = None if passphrase_file is None else read_passphrase(passphrase_file)
    try:
        found = signing_key_from_pem(read_file(pem), secret, kid=kid, algorithm=algorithm)
        others_read = pem.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    except KeyFileError as exc:
        raise KeyFileError(f"{pem}: {exc}") from exc
    except OSError as exc:
        raise KeyFileError(f"{pem}: {exc.strerror}") from exc
    if others_read:
        click.echo(f"warning: other users can read {pem}: delete it, or chmod 600", err=True)
    return found


@keys.command("list", epilog=example("pushkit keys list --json"))
@key_file_options()
@json_option
def list_(key_file: KeyFile, as_json: bool) -> None:
    """List the keys with their states, and which one signs.

    The active key of one algorithm signs, see `use`, except for subscriptions that ask for another
    algorithm. A key retires, and is no longer published, a while after it stopped signing.
    """
    ring = key_file.ring()
    now = utc_now()
    found = [key_document(ring, entry, now) for entry in ring.keys]
    click.echo(json.dumps(json_of(found), indent=2) if as_json else table_of(_COLUMNS, found))


@keys.command(epilog=example("pushkit keys rotate"))
@key_file_options()
@_algorithm_option
@click.option("--now", "activate_now", is_flag=True, help="Make the next key sign at once.")
@click.option("--force", is_flag=True, help="With --now: even if receivers may not know it yet.")
def rotate(key_file: KeyFile, algorithm: Algorithm | None, activate_now: bool, force: bool) -> None:
    """Make the next key sign as soon as every receiver knows it.

    The next key is the oldest pending one, or a new one. To repeat this changes nothing, until that
    key signs. Keys that ended more than 30 days ago are deleted from the file.
    """
    if force and not activate_now:
        raise click.UsageError("--force is only for --now")
    now = utc_now()

    def change(ring: KeyRing) -> KeyRing:
        rotated = ring.rotate(now, algorithm, activate_now=activate_now, force=force)
        return rotated.forget_retired(now)

    ring = key_file.update(change)
    _print_key(key_file, ring, now)


@keys.command(
    epilog=example(
        "pushkit keys new --alg ES256         # in addition to the RS256 key that signs",
        "pushkit keys use ES256               # once it is active",
    )
)
@click.argument("algorithm", metavar="ALG", type=_ALGORITHMS, callback=_algorithm)
@key_file_options()
def use(algorithm: Algorithm, key_file: KeyFile) -> None:
    """Sign with the key of the algorithm ALG from now on.

    The previous key stays active for subscriptions that ask for its algorithm, and stays published.
    If it is revoked, the next one of its algorithm, or a new one, takes its place.
    """
    now = utc_now()
    ring = key_file.update(lambda ring: ring.use(algorithm, now))
    click.echo(f"{algorithm} key {ring.active_key(now).kid} signs from now on")


# A thumbprint may begin with a hyphen, and must not be read as an option.
@keys.command(
    context_settings={"ignore_unknown_options": True},
    epilog=example("pushkit keys revoke rEltOPXl-8jZfn0NbO5yMzHDi5e-WdjzkrFUUcp6oIE"),
)
@click.argument("kid")
@key_file_options()
def revoke(kid: str, key_file: KeyFile) -> None:
    """Withdraw the key KID at once.

    The key is no longer published; receivers stop trusting it when their cached JWK Set expires. If
    it was signing, the next pending key replaces it, or a new one.
    """
    now = utc_now()
    ring = key_file.update(lambda ring: ring.revoke(kid, now))
    click.echo(f"revoked {kid}; receivers may trust it for another {in_seconds(ring.max_age)}")
    last = ring.keys[-1]
    if last.activates_at == now and ring.state(last.kid, now) is KeyState.ACTIVE:
        _print_key(key_file, ring, now)


@keys.command(epilog=example("pushkit keys export --out public/.well-known/jwks.json"))
@key_file_options()
@out_options()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jwks", "pem"]),
    default="jwks",
    help="A JWK Set, or public keys in PEM.",
)
def export(key_file: KeyFile, out: OutFile, format_: str) -> None:
    """Write the published public keys as a JWK Set or PEM."""
    ring, now = key_file.ring(), utc_now()
    if format_ == "jwks":
        out.write(jwks_document(ring, now) + b"\n", FileKind("a JWK Set", is_jwks))
        return
    published = [entry.key.to_verification_key() for entry in ring.published(now)]
    for key in published:
        if (read_as := VerificationKey.of(key.public_key).algorithm) is not key.algorithm:
            click.echo(
                f"warning: PEM does not say that key {key.kid} is for {key.algorithm}; it is read"
                f" as one for {read_as}, unless the reader says otherwise: use --format jwks",
                err=True,
            )
    pem = b"".join(map(public_pem, published))
    out.write(pem, FileKind("public keys in PEM", is_public_pem))


def _print_key(key_file: KeyFile, ring: KeyRing, now: datetime) -> None:
    """Say what the last key of a ring does, and what else it needs to sign."""
    entry = ring.keys[-1]
    given = is_given("keys") or is_given("file")
    place = f" --keys {shlex.quote(str(key_file.path))}" if given else ""
    state = ring.state(entry.kid, now)
    when = ""
    if state is KeyState.PENDING and entry.activates_at is None:
        when = f"; `{command_to_rotate(ring, entry.algorithm)}{place}` makes it sign"
    elif state is KeyState.PENDING:
        when = f" and signs from {moment(entry.activates_at)}"
    click.echo(f"{entry.algorithm} key {entry.kid} is {state}{when}")
    if entry.algorithm is not ring.default_algorithm:
        click.echo(
            f"{ring.default_algorithm} signs, unless a subscription asks for {entry.algorithm};"
            f" `pushkit keys use {entry.algorithm}{place}` changes that once the key is active"
        )
    known_for = now - entry.published_at
    if state is KeyState.ACTIVE and len(ring.keys) > 1 and known_for < ring.max_age:
        click.echo(
            "warning: receivers may hold a JWK Set without this key for up to"
            f" {in_seconds(ring.max_age)}",
            err=True,
        )

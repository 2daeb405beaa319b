"""The senders: how each signs, and how the receiver is configured to trust it; a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from pushkit.signing.standard_webhooks import generate_webhook_secret, webhook_public_key

__all__ = [
    "ALL_SCHEMES",
    "BASE",
    "HTTP",
    "JWT",
    "LIFETIME",
    "TOLERANCE",
    "WEBHOOKS",
    "Party",
    "configuration",
    "parties",
]

BASE = "https://client.example.com"
TOLERANCE, LIFETIME = 300, 300

JWT, WEBHOOKS, HTTP = "jwt", "standard-webhooks", "http-message-signatures"
ALL_SCHEMES = (JWT, WEBHOOKS, HTTP)
UNSIGNED = "unsigned-secret-only"


@dataclass(frozen=True, kw_only=True)
class Party:
    """A trusted sender, with its keys and secrets."""

    name: str  # its name; its issuer is made of it
    path: str  # where its notifications arrive
    profile: str = "standard"
    schemes: tuple[str, ...] = (JWT,)
    keys: tuple[SigningKey, ...] = ()  # its keys; it signs with the first by default
    # The `whsec_…` of Standard Webhooks v1, or an Ed25519 key for v1a.
    secret: str | SigningKey | None = None
    # The algorithms that the receiver lets it use.
    may_use: tuple[Algorithm, ...] = tuple(Algorithm)
    token: str = ""  # its static token; empty if tokens come from `expect()`
    credentials: tuple[str, ...] = ()  # its static values of `Authorization`
    # The scheme of the credentials that `expect()` returns with the token, if any.
    minted: str | None = None
    tasks: str = "any"  # the tasks that it may send
    id_field: str | None = None  # the field with the id of a delivery, for an unsigned sender
    key_ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_ids", frozenset(key.kid for key in self.keys))

    @property
    def issuer(self) -> str:
        return f"https://{self.name}.example.com"

    @property
    def url(self) -> str:
        return f"{BASE}{self.path}"

    @property
    def signs(self) -> tuple[str, ...]:
        """The kinds of signatures that its notifications must have."""
        return () if self.profile == UNSIGNED else self.schemes

    @property
    def states_ids(self) -> bool:
        """Whether a repetition can be recognised."""
        return bool(self.signs) or self.id_field is not None


@cache
def parties() -> tuple[Party, ...]:
    """Return every sender that is trusted; the keys are made once, because RSA takes its time."""
    ecdsa, eddsa, rsa = Algorithm.ES256, Algorithm.EDDSA, Algorithm.RS256
    by_jwt = [_party(f"jwt-{one.lower()}", keys=[one]) for one in Algorithm]
    by_http = [_party(f"http-{one.lower()}", keys=[one], schemes=(HTTP,)) for one in Algorithm]
    hook, other_hook = generate_webhook_secret(), generate_key(eddsa)
    return (
        *by_jwt,
        *by_http,
        _party("narrow", keys=[ecdsa, rsa], may_use=(ecdsa,)),
        _party("twin-a", keys=[ecdsa], path="/twins"),
        _party("twin-b", keys=[eddsa], path="/twins"),
        _party("hooks-v1", schemes=(WEBHOOKS,), secret=hook),
        _party("hooks-v1a", schemes=(WEBHOOKS,), secret=other_hook),
        _party("every", keys=[ecdsa], schemes=ALL_SCHEMES, secret=generate_webhook_secret()),
        _party("samples", keys=[rsa], profile="a2a-samples"),
        _party("trpc", keys=[rsa], profile="trpc-a2a-go"),
        _party("unsigned", profile=UNSIGNED),
        _party("unsigned-header", profile=UNSIGNED, id_field="X-Event-Id"),
        _party("unsigned-body", profile=UNSIGNED, id_field="/statusUpdate/metadata/event"),
        _party(
            "unsigned-key", profile=UNSIGNED, token="", credentials=("ApiKey static-api-key-1",)
        ),
        _party("credentials", keys=[ecdsa], credentials=("Bearer static-credentials-one",)),
        _party("registered", keys=[ecdsa], token="", tasks="registered"),
        _party("bound", keys=[ecdsa], token="", tasks="bind"),
        _party("bound-by-http", keys=[eddsa], schemes=(HTTP,), token="", tasks="bind"),
        _party("minted", keys=[ecdsa], token="", tasks="registered", minted="Bearer"),
        _party("unsigned-minted", profile=UNSIGNED, token="", tasks="bind", minted="ApiKey"),
    )


def _party(name: str, *, keys: list[Algorithm] | None = None, **settings: object) -> Party:
    made = tuple(generate_key(algorithm) for algorithm in keys or [])
    given = {"path": f"/{name}", "token": f"the-static-token-of-{name}", **settings}
    return Party(name=name, keys=made, **given)  # type: ignore[arg-type]  # the table's types


# --- the receiver's configuration ---------------------------------------------------------------


def configuration(folder: Path, *, port: int = 0) -> Path:
    """Write the file and the JWK Sets of a receiver that trusts all of them; return the file."""
    folder.mkdir(exist_ok=True)
    often = 10**9
    settings = [
        f'url = "{BASE}"\nlisten = "127.0.0.1:{port or 9000}"\nmax_body_bytes = 65536',
        'trusted_proxies = ["127.0.0.1"]',
        f"peer_rate = {often}\nsender_rate = {often}\n",
    ]
    tables = [*settings, *(_table(party, folder) for party in parties())]
    path = folder / "receiver.toml"
    path.write_text("\n".join(tables))
    return path


def _table(party: Party, folder: Path) -> str:
    values: dict[str, object] = {
        "name": party.name,
        "path": party.path,
        "profile": party.profile,
        "algorithms": [one.value for one in party.may_use],
        "tokens": [party.token] if party.token else [],
        "token_required": bool(party.token) or not party.credentials,
        "credentials": list(party.credentials),
        "tasks": party.tasks,
        "schemes": list(party.schemes),
    }
    if JWT in party.signs and party.profile == "standard":
        values["issuer"] = party.issuer
    if party.keys:
        jwks = {"keys": [public_jwk(key) for key in party.keys]}
        (folder / f"{party.name}.json").write_text(json.dumps(jwks))
        values["jwks_file"] = f"{party.name}.json"
    if party.secret is not None:
        secret = party.secret
        verifies = secret if isinstance(secret, str) else webhook_public_key(secret)
        values["webhook_secrets"] = [verifies]
    if party.id_field is not None:
        values["id_field"] = party.id_field
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["[[senders]]", *lines, ""])

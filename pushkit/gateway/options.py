"""What an operator says about a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pushkit.net.tls import ClientCertificate
from pushkit.options import Count, Duration, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a gateway passes requests on, and watches tasks.

    Attributes:
        public_url: The base URL under which clients reach the gateway, for the card; the issuer if
            it is not given.
        identity_jwks: The URL of a JWK Set: an owner is a claim of a bearer token by its keys.
        identity_claim: The claim that names the owner.
        identity_issuer: The `iss` that tokens must have.
        identity_audience: The `aud` that tokens must have.
        identity_header: The header in which a trusted proxy names the owner.
        trusted_proxies: Addresses and networks of the proxies in front, for example `10.0.0.0/8`.
        shared_configs: Whether all who may see a task share its push configs.
        trust: A trust file with the keys of a signed card (see `pushkit card verify`).
        upstream_authorization: The value of `Authorization` with which the gateway itself asks the
            agent about tasks; without it, it uses the caller's.
        credential_headers: The header fields in which callers prove who they are to the agent.
        upstream_ca_file: Root certificates in PEM for the agent, beside the system's.
        upstream_certificate: The gateway's client certificate towards the agent.
        connect_timeout: How long a connection to the agent may take.
        timeout: How long the agent may be silent before and within an answer.
        stream_timeout: How long it may be silent within a stream of events.
        max_body_bytes: The largest request, and the largest answer that the gateway itself reads.
        max_event_bytes: The largest event of a stream that is watched.
        max_requests: The most requests at once, streams included.
        max_requests_per_caller: The most requests at once of one owner or address.
        max_watches: The most tasks that this process watches at once.
        watch_for: How long a task is watched at most.

    Raises:
        ConfigError: An option has a wrong type, or is out of range.
    """

    public_url: str | None = None
    identity_jwks: str | None = None
    identity_claim: str = "sub"
    identity_issuer: str | None = None
    identity_audience: str | None = None
    identity_header: str | None = None
    trusted_proxies: Sequence[str] = ()
    shared_configs: bool = False
    trust: Path | str | None = None
    upstream_authorization: str | None = field(default=None, repr=False)
    credential_headers: Sequence[str] = ("Authorization",)
    upstream_ca_file: Path | str | None = None
    upstream_certificate: ClientCertificate | None = None
    connect_timeout: Duration = timedelta(seconds=10)
    timeout: Duration = timedelta(minutes=10)
    stream_timeout: Duration = timedelta(hours=1)
    max_body_bytes: Count = 16 * 1024 * 1024
    max_event_bytes: Count = 4 * 1024 * 1024
    max_requests: Count = 20_000
    max_requests_per_caller: Count = 2_000
    max_watches: Count = 5_000
    watch_for: Duration = timedelta(days=7)

    def __post_init__(self) -> None:
        check_options(self)

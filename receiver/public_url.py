"""Finds the faulty link between an agent and this receiver, by a POST through the public URL.

The body is no update. So a request whose sender, signature, time, audience, token and hash are all
valid is refused at step 6 (422), and nothing is stored or called back.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from pushkit.bounded_json import read_json_object
from pushkit.clock import utc_now
from pushkit.errors import (
    AnswerTimeoutError,
    ConnectionFailedError,
    MalformedJsonError,
    NameLookupError,
    TlsError,
    TransportError,
)
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.net.addresses import address_is_public, host_is_loopback
from pushkit.net.connection import Answer
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.signing.scheme import Scheme
from pushkit.url import Url, audience_of, masked_url
from receiver.diagnosis.agent import Draft, SigningAgent
from receiver.refusals import REFUSALS
from receiver.senders import SenderProfile, TrustedSender
from receiver.steps import Step

_TIMEOUT = timedelta(seconds=15)
_SKEW = timedelta(seconds=30)
# A placeholder where no token is given: a draft needs a long one.
_NO_TOKEN = "no-token-was-given-to-check-with"  # noqa: S105  # not one
_ANY_ISSUER = "receiver-check"  # for senders that state none
# JSON, but of no A2A version.
_NO_UPDATE: Final = b'{"check":"receiver check --url"}'

_BY_CODE: Final[Mapping[str, tuple[str, str]]] = {
    "not_found": ("path", "no sender of this receiver has this path: the proxy changes it, or"),
    "method_not_allowed": ("proxy", "the POST arrived as another method"),
    "unknown_sender": ("key", "no sender has this issuer and key"),
    "invalid_signature": ("key", "the signature is invalid under the keys that are trusted"),
    "keys_unavailable": ("key", "the receiver cannot fetch the sender's keys: `receiver check`"),
    "wrong_issuer": ("key", "another `iss` is expected"),
    "invalid_claims": ("key", "this sender has to sign by another profile"),
    "stale_timestamp": ("clock", "the receiver's clock and this one are too far apart"),
    "wrong_audience": ("audience", "the receiver expects another URL"),
    "invalid_token": ("token", "this sender was given another token"),
    "digest_mismatch": ("proxy", "the body was changed on its way"),
    "unsupported_media_type": ("proxy", "Content-Type was changed on its way, or the body packed"),
    "headers_too_large": ("proxy", "more headers were added than max_header_bytes allows"),
    "malformed_request": ("proxy", "a header arrived twice, or ids were changed on the way"),
    "malformed_http": ("proxy", "the request arrived malformed"),
    "rate_limited": ("proxy", "too many at once: name the proxy in trusted_proxies"),
}
# The links after the path, in the order in which the receiver checks them, each with its step.
_AFTER_PATH: Final = {
    "key": Step.SIGNATURE,
    "clock": Step.TIME,
    "audience": Step.AUDIENCE,
    "token": Step.TOKEN,
}


class Link(NamedTuple):
    """One link, and whether it is in order."""

    name: str  # `scheme`, `dns`, `tls`, `proxy`, `path`, `key`, `clock`, `audience` or `token`
    holds: bool | None  # whether it is in order; None if unknown
    says: str  # what was found, and what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The request to post."""

    url: str  # the webhook as agents have it
    own_url: str  # the webhook as the receiver's configuration has it
    sender: TrustedSender
    key: SigningKey | None = None  # the agent's signing key, if available
    # A token that the agent was given, if available.
    token: str | None = field(default=None, repr=False)
    connections: ConnectionOptions = field(default_factory=ConnectionOptions)


async def check_public_url(probe: Probe) -> list[Link]:
    """Post through the public URL; return the links, in the order in which a request passes them.

    Raises:
        ConfigError: It is no URL.
    """
    policy = DestinationPolicy.naming(probe.url)
    links = [_scheme(probe)]
    client = Transport(policy, probe.connections)
    try:
        links += await _dns(Url.parse(probe.url))
        if links[-1].holds is False:
            return [*links, _static_audience(probe)]
        try:
            answer = await _post(client, probe, by_header=False)
        except TransportError as exc:
            name, advice = _BROKEN.get(type(exc), ("proxy", ""))
            return [*links, Link(name, False, f"{exc}{advice}"), _static_audience(probe)]
        if answer.status == 401 and probe.key is not None:
            in_header = await _post(client, probe, by_header=True)
            if _code(in_header) == "unrecognised_body":
                says = "Authorization does not arrive: the proxy removes it"
                return [*links, _connected(probe), Link("proxy", False, says)]
    finally:
        await client.close()
    return [*links, _connected(probe), *_judged(probe, answer)]


# --- the way to the receiver --------------------------------------------------------------------


def _scheme(probe: Probe) -> Link:
    url, own = Url.parse(probe.url), Url.parse(probe.own_url)
    if url.scheme != own.scheme:
        says = f"agents post by {url.scheme}, `url` in the configuration is {own.scheme}"
        return Link("scheme", False, f"{says}: they must be the same")
    if url.scheme == "http" and not host_is_loopback(url.host):
        return Link("scheme", False, "agents post to https only: use a certificate")
    return Link("scheme", True, url.scheme)


async def _dns(url: Url) -> list[Link]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        return [Link("dns", False, f"{url.host} has no address: {exc.strerror}")]
    addresses = list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))
    private = [address for address in addresses if not address_is_public(address)]
    says = f"{url.host} is {', '.join(addresses)}"
    if private:
        says += f"; {private[0]} is not public: agents that do not allow it will refuse to post"
    return [Link("dns", True, says)]


def _connected(probe: Probe) -> Link:
    url = Url.parse(probe.url)
    says = "the certificate is valid" if url.scheme == "https" else "none: http"
    return Link("tls", True, says)


# By transport error: the faulty link, and a possible reason.
_BROKEN: Final[Mapping[type[TransportError], tuple[str, str]]] = {
    NameLookupError: ("dns", ""),
    TlsError: ("tls", ""),
    ConnectionFailedError: (
        "proxy",
        ": nothing listens there: check that the proxy runs, and `receiver serve` behind it",
    ),
    AnswerTimeoutError: ("proxy", ": a firewall, or a proxy that does not reach the receiver"),
}


async def _post(client: Transport, probe: Probe, *, by_header: bool) -> Answer:
    agent = SigningAgent(
        webhook_url=probe.url,
        issuer=probe.sender.issuer or _ANY_ISSUER,
        token=probe.token if probe.token and len(probe.token) >= 16 else _NO_TOKEN,
        key=probe.key or generate_key(Algorithm.ES256),
    )
    draft: Draft = agent.draft("receiver-check")
    signed = probe.sender.profile.signed
    draft = replace(draft, body=_NO_UPDATE, token=probe.token or "", signed=signed)
    request = draft.request()
    # As agents do: given credentials use `Authorization`, and the JWT moves to another header.
    given = [
        ("Authorization" if " " in each else "X-Api-Key", each)
        for each in probe.sender.credentials[:1]
    ]
    headers = [
        ("X-A2A-Signature", value.removeprefix("Bearer "))
        if (by_header or given) and name == "Authorization"
        else (name, value)
        for name, value in request.headers
    ]
    destination = client.policy.check(probe.url)
    return await client.post(destination, [*headers, *given], request.body, timeout=_TIMEOUT)


# --- the answer ---------------------------------------------------------------------------------


def _judged(probe: Probe, answer: Answer) -> Iterator[Link]:
    code, audience = _code(answer), _static_audience(probe)
    if code is None:
        yield from (Link("proxy", False, _not_ours(answer)), audience)
        return
    name, says = _BY_CODE.get(code, ("", ""))
    if name == "proxy":
        yield from (Link("proxy", False, f"{code}: {says}"), audience)
        return
    yield Link("proxy", True, f"the receiver answers ({answer.status} {code})")
    if name == "path":
        found = Url.parse(probe.url).target.partition("?")[0]
        says = f"{says} the URL has a wrong one: found {found}, expected {probe.sender.path}"
        yield from (Link("path", False, says), audience)
        return
    yield Link("path", True, probe.sender.path)
    if probe.key is None and probe.sender.profile.signed:
        yield Link("key", None, _how_to_see(probe.sender))
        yield from (_clock_by_date(answer), audience)
        yield Link("token", None, "not checked without a signature")
        return
    first = next(iter(REFUSALS[code].steps), Step.REQUEST)
    if not name and first is Step.REQUEST:  # perhaps refused before the links were checked
        yield from (Link("receiver", False, f"{code}: {_LOG_SAYS}"), audience)
        return
    for passed, step in _AFTER_PATH.items():
        if passed == name:
            yield _at_fault(probe, name, f"{code}: {says}")
            return
        if not name and step is first:  # perhaps refused there
            break
        yield audience if passed == "audience" else _passed(probe, passed)
    if code != "unrecognised_body":
        yield Link("receiver", False, f"{code}: {_LOG_SAYS}")


def _how_to_see(sender: TrustedSender) -> str:
    if sender.signing == {Scheme.JWT}:
        return "not checked: give the agent's key file by --keys"
    return f"not checked: this check signs by {Scheme.JWT} alone, and this sender needs more"


def _passed(probe: Probe, name: str) -> Link:
    """Return a link without a fault; unknown, if the request did not exercise it."""
    if name == "token":
        is_sent = bool(probe.token or probe.sender.credentials)
        return Link(name, True, _HOLDS[name]) if is_sent else Link(name, None, "not needed")
    signed = probe.sender.profile.signed
    return Link(name, True, _HOLDS[name]) if signed else Link(name, None, _UNSIGNED)


def _at_fault(probe: Probe, name: str, says: str) -> Link:
    if name == "audience":
        link = _static_audience(probe)
        if link.holds:
            says = f"{says} than this configuration, {link.says}: restart it, or use the file"
            says = f"{says} that it was started with"
        return Link(name, False, says if link.holds else link.says)
    if name == "token" and probe.token is None and not probe.sender.credentials:
        return Link("token", None, "not checked: give a token by --token")
    return Link(name, False, says)


_UNSIGNED: Final = "not checked: this sender does not sign"
_LOG_SAYS: Final = "the receiver's log says more"
_HOLDS: Final = {
    "key": "the signature is valid",
    "clock": "the signed time is accepted",
    "token": "the sender was given it",
}


def _not_ours(answer: Answer) -> str:
    said = f"answered {answer.status}, but not by this receiver"
    if 300 <= answer.status < 400:
        to = answer.headers.all("Location")
        where = f" to {masked_url(to[0])}" if to else ""
        return f"{said}: a redirect{where}, which agents do not follow"
    if answer.status in (502, 503, 504):
        return f"{said}: the proxy does not reach it: check that `receiver serve` runs behind it"
    if 200 <= answer.status < 300:
        return f"{said}: another server accepts the notifications, and they are lost"
    return f"{said}: the proxy answers itself, or routes this path to another server"


def _clock_by_date(answer: Answer) -> Link:
    """Compare the answer's `Date` (RFC 9110 §6.6.1) with the clock of this machine."""
    values = answer.headers.all("Date")
    try:
        there: datetime = parsedate_to_datetime(values[0])
        apart = abs(there - utc_now())
    except (IndexError, TypeError, ValueError):
        return Link("clock", None, "unknown: no `Date` in the answer")
    seconds = int(apart.total_seconds())
    if apart > _SKEW:
        says = f"the receiver's clock is {seconds} s from this machine's: use NTP on both"
        return Link("clock", False, says)
    return Link("clock", True, f"{seconds} s from this machine's")


def _static_audience(probe: Probe) -> Link:
    """Compare the audience that agents will sign with those that the configuration expects."""
    sender = probe.sender
    if not (sender.profile is SenderProfile.STANDARD and sender.has_keys):
        return Link("audience", None, "not checked: this sender signs none")
    signed = audience_of(probe.url)
    expected = [audience_of(url) for url in sender.audience or [probe.own_url]]
    if signed in expected or signed.partition("?")[0] in expected:
        return Link("audience", True, signed)
    says = f"agents sign for {signed}, expected {' or '.join(expected)}"
    says = f"{says}: set `url`, or `audience` of sender {sender.name}"
    return Link("audience", False, says)


def _code(answer: Answer) -> str | None:
    """Return the code of a refusal of this receiver; None if the answer is not one."""
    media_type = ",".join(answer.headers.all("Content-Type")).partition(";")[0].strip().lower()
    try:
        code = read_json_object(answer.body).get("code")
    except MalformedJsonError:
        return None
    ours = media_type == "application/problem+json" and code in REFUSALS
    return str(code) if ours else None

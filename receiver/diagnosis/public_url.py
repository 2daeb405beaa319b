"""Finds the faulty link between an agent and this receiver, by a POST through the public URL.

The body is no update. So a request whose sender, signature, time, audience, token and hash are all
valid is refused at step 6 (422), and nothing is stored or called back. Over HTTP only the code of a
refusal says which step it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from pushkit.clock import utc_now
from pushkit.errors import (
    AnswerTimeoutError,
    AudienceError,
    ConnectionFailedError,
    NameLookupError,
    TimestampError,
    TlsError,
    TransportError,
)
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.net.addresses import address_is_public, host_is_loopback
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.signing.scheme import Scheme
from pushkit.url import Url, audience_of, masked_url
from receiver.diagnosis.report import Checked, LinkResult, in_words, unstated
from receiver.diagnosis.subject import code_in
from receiver.diagnosis.trial import SigningAgent
from receiver.refusals import refusal_of, results_over_http
from receiver.senders import SenderProfile, TrustedSender
from receiver.steps import CheckResult, Result, Step

_TIMEOUT = timedelta(seconds=15)
_SKEW = timedelta(seconds=30)
# A placeholder where no token is given: a draft needs a long one.
_NO_TOKEN = "no-token-was-given-to-check-with"  # noqa: S105  # not one
_ANY_ISSUER = "receiver-check"  # for senders that state none
# JSON, but of no A2A version; and how it is refused if all else is in order.
_NO_UPDATE: Final = b'{"check":"receiver check --url"}'
_ARRIVED: Final = "unrecognised_body"
# How it is refused if it is signed by a key that nobody knows.
_UNPROVEN: Final = ("invalid_signature", "unknown_sender")


# The links of the way before the receiver, in the order in which a request passes them.
_LINKS: Final = ("scheme", "dns", "tls", "proxy", "path")
# What a proxy did to a request that was in order when it left, by the code of the refusal.
_ON_THE_WAY: Final[Mapping[str, str]] = {
    "method_not_allowed": "the POST arrived as another method",
    "malformed_http": "the request arrived malformed",
    "malformed_request": "a header arrived twice, or ids were changed on the way",
    "unsupported_media_type": "Content-Type was changed on its way, or the body packed",
    "headers_too_large": "more headers were added than max_header_bytes allows",
    "digest_mismatch": "the body was changed on its way",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """The request to post."""

    url: str  # the webhook as agents have it
    own_url: str  # the webhook as the receiver's configuration has it
    sender: TrustedSender
    key: SigningKey | None = None  # the agent's signing key, if available
    # A token that the agent was given, if available.
    token: str | None = field(default=None, repr=False)
    connections: ConnectionOptions = field(default_factory=ConnectionOptions)


async def check_public_url(probe: TrialRequest) -> list[Checked]:
    """Post through the public URL; return the links, and the steps of the receiver behind them.

    Raises:
        ConfigError: It is no URL.
    """
    policy = DestinationPolicy.naming(probe.url)
    links = {"scheme": _scheme(probe), "dns": await _dns(Url.parse(probe.url))}
    steps = [CheckResult(step, Result.NOT_REACHED) for step in Step]
    if links["dns"].result.holds:
        async with closing(Transport(policy, probe.connections)) as client:
            steps = await _walk(client, probe, links) or steps
    # What the configuration says of the audience is known, however far a request comes.
    audience = _static_audience(probe)
    if audience.result is Result.REFUSED:
        steps = [audience if one.step is Step.AUDIENCE else one for one in steps]
    names = dict.fromkeys((*_LINKS, *links))
    return [*(links.get(name) or LinkResult(name, Result.NOT_REACHED) for name in names), *steps]


async def _walk(
    client: Transport, probe: TrialRequest, links: dict[str, LinkResult]
) -> list[CheckResult] | None:
    """Find the links behind DNS; return the steps, if the receiver answers."""

    def put(name: str, result: Result, says: str) -> None:
        links[name] = LinkResult(name, result, says)

    try:
        answer = await _post(client, probe, by_header=False)
    except TransportError as exc:
        name, advice = _BROKEN.get(type(exc), ("proxy", ""))
        put(name, Result.REFUSED, f"{exc}{advice}")
        return None
    if Url.parse(probe.url).scheme == "https":
        put("tls", Result.PASSED, "the certificate is valid")
    else:
        put("tls", Result.NOT_CHECKED, "http has none")
    code = _code(answer)
    if code is None:
        put("proxy", Result.REFUSED, _not_ours(answer))
        return None
    row, says = refusal_of(code), f"the receiver answers ({answer.status} {code})"
    put("proxy", Result.PASSED, says)
    if code in _ON_THE_WAY:
        put("proxy", Result.REFUSED, f"{says}: {_ON_THE_WAY[code]}")
    elif answer.status == 401 and probe.key is not None and await _arrives(client, probe):
        put("proxy", Result.REFUSED, "Authorization does not arrive: the proxy removes it")
        return None
    put("path", Result.PASSED, probe.sender.path)
    if code == "not_found":
        there = Url.parse(probe.url).target.partition("?")[0]
        advice = "the URL has a wrong path, or the proxy changes it"
        says = f"no sender has {there}, expected {probe.sender.path}: {advice}"
        put("path", Result.REFUSED, says)
    elif not row.steps and code not in _ON_THE_WAY:
        put("receiver", Result.REFUSED, f"{code}: {row.means}: the receiver's log says more")
    return _steps(probe, answer, code)


# --- the way to the receiver --------------------------------------------------------------------


def _scheme(probe: TrialRequest) -> LinkResult:
    url, own = Url.parse(probe.url), Url.parse(probe.own_url)
    if url.scheme != own.scheme:
        says = f"agents post by {url.scheme}, expected {own.scheme}, as `url` of the configuration"
        return LinkResult("scheme", Result.REFUSED, says)
    if url.scheme == "http" and not host_is_loopback(url.host):
        return LinkResult("scheme", Result.REFUSED, "agents post to https only: use a certificate")
    return LinkResult("scheme", Result.PASSED, url.scheme)


async def _dns(url: Url) -> LinkResult:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        says = f"{url.host} has no address: {exc.strerror}"
        return LinkResult("dns", Result.REFUSED, says)
    addresses = list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))
    private = [address for address in addresses if not address_is_public(address)]
    says = f"{url.host} is {', '.join(addresses)}"
    if private:
        says += f"; {private[0]} is not public: agents that do not allow it will refuse to post"
    return LinkResult("dns", Result.PASSED, says)


async def _post(client: Transport, probe: TrialRequest, *, by_header: bool) -> HttpAnswer:
    agent = SigningAgent(
        webhook_url=probe.url,
        issuer=probe.sender.issuer or _ANY_ISSUER,
        token=probe.token if probe.token and len(probe.token) >= 16 else _NO_TOKEN,
        key=probe.key or generate_key(Algorithm.ES256),
    )
    signed = probe.sender.profile.signed
    draft = agent.draft("receiver-check")
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


async def _arrives(client: Transport, probe: TrialRequest) -> bool:
    """Return whether the request is in order once its JWT is in another header."""
    with contextlib.suppress(TransportError):
        return _code(await _post(client, probe, by_header=True)) == _ARRIVED
    return False


# --- the answer ---------------------------------------------------------------------------------


def _steps(probe: TrialRequest, answer: HttpAnswer, code: str) -> list[CheckResult]:
    """Return the steps of the receiver, as far as the code of its answer says them."""
    sender, results, audience = probe.sender, results_over_http(code), _static_audience(probe)
    known: dict[Step, CheckResult] = {}
    unchecked = unstated(sorted(sender.signing), sender.profile)

    def put(result: Result, says: str, *steps: Step) -> None:
        known.update({step: CheckResult(step, result, says) for step in steps})

    if probe.key is None and sender.profile.signed and code in _UNPROVEN:
        results = [
            one if one.step is Step.REQUEST else CheckResult(one.step, Result.NOT_REACHED)
            for one in results
        ]
        says = f"this check signs by {Scheme.JWT} alone, and this sender needs more"
        if sender.signing == {Scheme.JWT}:
            says = "give the agent's key file by --keys"
        put(Result.NOT_CHECKED, says, Step.SENDER, Step.SIGNATURE)
        known |= {Step.TIME: _clock_by_date(answer), Step.AUDIENCE: audience}
    elif code == _ARRIVED:
        put(Result.NOT_CHECKED, "nothing that could be accepted was posted", Step.CONTENT)
    if not (probe.token or sender.credentials) and code in ("invalid_token", _ARRIVED):
        says = "not needed" if code == _ARRIVED else "give a token by --token"
        put(Result.NOT_CHECKED, says, Step.TOKEN)
    if code == AudienceError.code and audience.result.holds:
        says = f"{code}: the receiver expects another URL than this configuration:"
        says = f"{says} restart it, or use the file that it was started with"
        known[Step.AUDIENCE] = CheckResult(Step.AUDIENCE, Result.REFUSED, says, code)
    facts = {
        Step.SENDER: sender.name,
        Step.SIGNATURE: "it is valid",
        Step.TIME: "the signed time is accepted",
        Step.AUDIENCE: audience.found,
        Step.TOKEN: "the sender was given it",
        Step.BODY: "it arrived as it was signed",
    }
    results = [known.get(one.step, one) for one in results]
    passed = [one.step for one in results if one.result.holds]
    return in_words(results, {step: facts.get(step, "") for step in passed}, unchecked)


def faults(results: Sequence[Checked]) -> list[str]:
    """Return the names of the links and steps at fault; of steps, perhaps some of which one is."""
    refused = [one.name for one in results if one.result is Result.REFUSED]
    perhaps = [one.name for one in results if one.result is Result.UNKNOWN and one.found]
    return refused or ([" or ".join(perhaps)] if perhaps else [])


def _not_ours(answer: HttpAnswer) -> str:
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


def _clock_by_date(answer: HttpAnswer) -> CheckResult:
    """Compare the answer's `Date` (RFC 9110 §6.6.1) with the clock of this machine."""
    values = answer.headers.all("Date")
    try:
        there: datetime = parsedate_to_datetime(values[0])
        apart = abs(there - utc_now())
    except (IndexError, TypeError, ValueError):
        return CheckResult(Step.TIME, Result.NOT_CHECKED, "no `Date` in the answer")
    says = f"by the answer's `Date`, the receiver's clock is {apart.seconds} s from this machine's"
    if apart > _SKEW:
        says = f"{says}: use NTP on both"
        return CheckResult(Step.TIME, Result.REFUSED, says, TimestampError.code)
    return CheckResult(Step.TIME, Result.NOT_CHECKED, says)


def _static_audience(probe: TrialRequest) -> CheckResult:
    """Compare the audience that agents will sign with those that the configuration expects."""
    sender = probe.sender
    if not (sender.profile is SenderProfile.STANDARD and sender.has_keys):
        return CheckResult(Step.AUDIENCE, Result.NOT_CHECKED, "this sender signs none")
    signed = audience_of(probe.url)
    expected = [audience_of(url) for url in sender.audience or [probe.own_url]]
    if signed in expected or signed.partition("?")[0] in expected:
        return CheckResult(Step.AUDIENCE, Result.PASSED, signed)
    says = f"agents sign for {signed}, expected {' or '.join(expected)}: set `url`, or `audience`"
    says = f"{says} of sender {sender.name}"
    return CheckResult(Step.AUDIENCE, Result.REFUSED, says, AudienceError.code)


def _code(answer: HttpAnswer) -> str | None:
    """Return the code of a refusal of this receiver; None if the answer is not one."""
    media_type = ",".join(answer.headers.all("Content-Type")).partition(";")[0].strip().lower()
    return code_in(answer.body) if media_type == "application/problem+json" else None

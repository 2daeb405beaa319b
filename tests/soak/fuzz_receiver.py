"""Change genuine requests in every way, and hold the answers against a second opinion.

python tests/soak/fuzz_receiver.py --cases 1000000 [--seed 7]

What must hold, whatever arrives at a sender that signs, one that signs as the first A2A samples do,
and one that does not sign at all:

- no answer is a 5xx,
- nothing passes for the sender's that the second opinion, a few plain lines below, does not pass,
- every refusal is in the log, once, with its status and code,
- no token, credential, claim or signature is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pushkit.keys.jwk import Algorithm, generate_key, public_pem
from pushkit.signing.notification_jwt import NotificationClaims, body_sha256, sign_notification
from pushkit.webhook import Headers, WebhookRequest
from receiver import Limits, RateLimit, Receiver, SenderProfile, TaskPolicy, TrustedSender, Verdict

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BASE, ISSUER = "https://client.example.com", "https://agent.example.com"
SIGNED, SAMPLES, UNSIGNED = "/signed", "/samples", "/unsigned"
TOKEN = "the-notification-token-is-private"
MARK = "the-body-is-private"
BODY = (
    b'{"statusUpdate": {"taskId": "task-1", "status": {"state": "TASK_STATE_WORKING"},'
    b' "metadata": {"note": "%s"}}}' % MARK.encode()
)
TOKEN_HEADERS = ("x-a2a-token", "x-a2a-notification-token", "a2a-notification-token")
KEY, STRANGER = generate_key(Algorithm.ES256), generate_key(Algorithm.ES256)
SENDS_OFTEN = RateLimit(per_second=1e9, burst=10**9)
BATCH = 2000


def claims_for(path: str, body: bytes) -> NotificationClaims:
    return NotificationClaims(
        issuer=ISSUER,
        audience=f"{BASE}{path}",
        issued_at=NOW,
        delivery_id=hashlib.sha256(body).hexdigest(),
        task_id="task-1",
        config_id="config-1",
        seq=1,
        body_sha256=body_sha256(body),
    )


# --- requests -----------------------------------------------------------------------------------

Fields = list[tuple[str, str]]


@dataclass
class Case:
    """A genuine request in the making, and what the sender's own key has signed of it."""

    path: str
    body: bytes = BODY
    target: str = ""
    compact: str = ""
    header: JsonObject = field(default_factory=dict)
    claims: JsonObject = field(default_factory=dict)
    signed: dict[str, JsonObject] = field(default_factory=dict)
    fields: Fields = field(default_factory=list)
    jwt_header: str = "Authorization"

    def sign(self, header: JsonObject, claims: JsonObject, how: str) -> None:
        """Put a JWT into the request; remember it if the sender's key has signed it."""
        self.header, self.claims = header, claims
        signing_input = f"{segment(header)}.{segment(claims)}"
        self.compact = f"{signing_input}.{b64url(SIGNERS[how](signing_input.encode()))}"
        if how == "key":
            self.signed[self.compact] = claims

    def request(self) -> WebhookRequest:
        scheme = "Bearer " if self.jwt_header == "Authorization" else ""
        return WebhookRequest(
            target=self.target or self.path,
            headers=Headers([*self.fields, (self.jwt_header, f"{scheme}{self.compact}")]),
            body=self.body,
        )


def genuine(path: str, body: bytes) -> Case:
    case = Case(path=path, body=body)
    claims = claims_for(path, body)
    header, payload = (decoded(part) for part in sign_notification(claims, KEY).split(".")[:2])
    case.sign(header, payload, "key")
    case.fields = [
        ("Content-Type", "application/a2a+json"),
        ("X-A2A-Token", TOKEN),
        ("X-A2A-Notification-Token", TOKEN),
        ("webhook-id", claims.delivery_id),
    ]
    return case


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def segment(members: JsonObject) -> str:
    return b64url(json.dumps(members).encode())


def decoded(part: str) -> JsonObject:
    found: JsonObject = json.loads(base64.urlsafe_b64decode(part + "=="))
    return found


_es256 = jwt.algorithms.get_default_algorithms()["ES256"]
SIGNERS: dict[str, Callable[[bytes], bytes]] = {
    "key": lambda data: _es256.sign(data, KEY.private_key),
    "stranger": lambda data: _es256.sign(data, STRANGER.private_key),
    "hmac": lambda data: hmac.digest(public_pem(KEY), data, hashlib.sha256),
    "none": lambda _: b"",
    "zeros": lambda _: bytes(64),
}

# --- changes to them ----------------------------------------------------------------------------

Change = Callable[[Case], None]
# What an HTTP parser may hand on: any octet but line ends, as latin-1.
OCTET = st.characters(max_codepoint=255, exclude_characters="\r\n\0")
TEXT = st.text(OCTET, max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *TOKEN_HEADERS,
        "Authorization",
        "X-A2A-Signature",
        "X-Api-Key",
        "webhook-id",
        "webhook-timestamp",
        "Content-Type",
        "Content-Encoding",
        "Host",
    ]
) | st.text("aBc-", min_size=1, max_size=6)
VALUES = TEXT | st.sampled_from(
    [TOKEN, f" {TOKEN}\t", f"{TOKEN},{TOKEN}", TOKEN[:-1], "", "Bearer", "Bearer a.b.c", "gzip"]
)
STATES = st.sampled_from(["TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "working", "nonsense"])
BODIES = (
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda kind, task, state: json.dumps(
            {kind: {"taskId": task, "status": {"state": state}}}
        ).encode(),
        st.sampled_from(["statusUpdate", "task", "artifactUpdate", "message", "kind"]),
        st.text(max_size=8) | JSON,
        STATES | JSON,
    )
)
CLAIMS = st.dictionaries(
    st.sampled_from(
        ["iss", "aud", "iat", "exp", "jti", "taskId", "configId", "seq", "request_body_sha256"]
    ),
    JSON
    | st.sampled_from([1767268800, 1767268500, 1767268499, 1767269100, 1767269101, 1e308, ISSUER])
    | st.sampled_from([f"{BASE}{SIGNED}", f"{BASE}{SIGNED}?x=1", [f"{BASE}{SIGNED}"], "a.b", "A"]),
    min_size=1,
    max_size=3,
)
HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "jwk", "x5c", "zip"]),
    JSON | st.sampled_from(["none", "HS256", "ES256", "ES384", KEY.kid, STRANGER.kid, "JWT"]),
    max_size=3,
)


def set_field(name: str, value: str) -> Change:
    def change(case: Case) -> None:
        drop_field(name)(case)
        case.fields.append((name, value))

    return change


def drop_field(name: str) -> Change:
    def change(case: Case) -> None:
        case.fields = [item for item in case.fields if item[0].lower() != name.lower()]

    return change


def resigned(header: JsonObject, claims: JsonObject, how: str) -> Change:
    def change(case: Case) -> None:
        case.sign({**case.header, **header}, {**case.claims, **claims}, how)

    return change


def one_character(position: int, character: str) -> Change:
    def change(case: Case) -> None:
        at = position % max(len(case.compact), 1)
        case.compact = f"{case.compact[:at]}{character}{case.compact[at + 1 :]}"

    return change


def one_octet(position: int, octet: int) -> Change:
    def change(case: Case) -> None:
        at = position % max(len(case.body), 1)
        case.body = case.body[:at] + bytes([octet]) + case.body[at + 1 :]

    return change


def attribute(name: str, value: object) -> Change:
    return lambda case: setattr(case, name, value)


IN_JWT = st.builds(
    resigned, HEADERS, CLAIMS | st.just({}), st.sampled_from(sorted(SIGNERS))
) | st.builds(
    one_character,
    st.integers(0, 999),
    st.characters(max_codepoint=255, exclude_characters="\r\n\0"),
)
SIGNED_CLAIMS = st.builds(resigned, st.just({}), CLAIMS, st.just("key"))
IN_FIELDS = (
    st.builds(set_field, NAMES, VALUES)
    | st.builds(drop_field, NAMES)
    | st.builds(lambda item: lambda case: case.fields.append(item), st.tuples(NAMES, VALUES))
    | st.builds(attribute, st.just("jwt_header"), NAMES)
    | st.builds(attribute, st.just("compact"), TEXT)
    | st.builds(attribute, st.just("target"), TEXT | st.just(f"{SIGNED}?x=1"))
)
IN_BODY = st.builds(one_octet, st.integers(0, 999), st.integers(0, 255)) | st.builds(
    attribute, st.just("body"), BODIES
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    path = draw(st.sampled_from([SIGNED, SIGNED, SAMPLES, UNSIGNED]))
    case = genuine(path, draw(BODIES) if draw(st.booleans()) else BODY)
    at_once = draw(st.sampled_from([1, 1, 1, 2, 3]))
    where = st.sampled_from([IN_JWT, SIGNED_CLAIMS, IN_FIELDS, IN_BODY])
    for _ in range(at_once):
        draw(draw(where))(case)
    return case


# --- the second opinion -------------------------------------------------------------------------


def may_be_accepted(case: Case, request: WebhookRequest) -> bool:
    """Say whether a request could be accepted, from what the sender's key has signed."""
    tokens = {value.strip(" \t") for name in TOKEN_HEADERS for value in request.headers.all(name)}
    if tokens != {TOKEN}:
        return False
    path = request.target.partition("?")[0]
    if path == UNSIGNED:
        return True
    carried = {value.strip(" \t").rpartition(" ")[2] for _, value in request.headers}
    return any(
        _fits(case.signed[compact], request, path) for compact in carried & case.signed.keys()
    )


def _fits(claims: JsonObject, request: WebhookRequest, path: str) -> bool:
    issued_at, expires_at = claims.get("iat"), claims.get("exp")
    digests = {hashlib.sha256(request.body).hexdigest()}
    if path == SAMPLES:
        with contextlib.suppress(ValueError):
            compact = json.dumps(
                json.loads(request.body), ensure_ascii=False, separators=(",", ":")
            )
            digests.add(hashlib.sha256(compact.encode()).hexdigest())
    in_time = (
        isinstance(issued_at, int | float)
        and abs(issued_at - NOW.timestamp()) <= 300
        and (expires_at is None or float(str(expires_at)) >= NOW.timestamp() - 60)
    )
    ids = {value.strip(" \t") for value in request.headers.all("webhook-id")}
    named = claims.get("jti") in (None, *ids) or not ids
    if not (claims.get("request_body_sha256") in digests and in_time and named):
        return False
    if path == SAMPLES:
        return True
    audience = claims.get("aud")
    query = request.target.partition("?")[2]
    own = {f"{BASE}{path}", f"{BASE}{path}?{query}"}
    stated = audience if isinstance(audience, list) else [audience]
    return claims.get("iss") == ISSUER and any(one in own for one in stated if isinstance(one, str))


# --- the receiver -------------------------------------------------------------------------------


# What is said only to who has proven to be the sender: steps 3 to 5 are passed.
_PROVEN = frozenset({"accepted", "duplicate", "id_conflict", "malformed_body", "unrecognised_body"})


class Fuzzer:
    """A receiver with three senders, and what it has answered.

    Args:
        folder: Where its database is.
    """

    def __init__(self, folder: Path) -> None:
        self.answers: Counter[str] = Counter()
        self.cases = 0
        keys = {KEY.kid: KEY.to_verification_key()}
        shared: dict[str, Any] = {"tokens": (TOKEN,), "tasks": TaskPolicy.ANY}
        self.receiver = Receiver(
            url=BASE,
            senders=[
                TrustedSender(name="signed", issuer=ISSUER, keys=keys, path=SIGNED, **shared),
                TrustedSender(
                    name="samples",
                    keys=keys,
                    path=SAMPLES,
                    profile=SenderProfile.A2A_SAMPLES,
                    **shared,
                ),
                TrustedSender(
                    name="unsigned",
                    path=UNSIGNED,
                    profile=SenderProfile.UNSIGNED_SECRET_ONLY,
                    **shared,
                ),
            ],
            database=folder / "fuzz.db",
            limits=Limits(peer_rate=SENDS_OFTEN, sender_rate=SENDS_OFTEN),
            clock=lambda: NOW,
        )

    async def check(self, case: Case) -> None:
        """Send one request, and hold the answer and the log against what must be."""
        request = case.request()
        with captured() as log:
            verdict = await self.receiver.receive(request, peer="192.0.2.1")
        self.cases += 1
        self.answers[f"{verdict.status} {verdict.code}"] += 1
        assert verdict.status < 500, f"{verdict}: {log}"
        proven = verdict.code in _PROVEN
        assert not proven or may_be_accepted(case, request), f"false accept: {verdict}"
        _check_log(verdict, log, case, request)


def _check_log(verdict: Verdict, log: list[str], case: Case, request: WebhookRequest) -> None:
    told = [line for line in log if line.startswith(f"refused {verdict.status} {verdict.code} ")]
    assert len(told) == verdict.refused, f"{verdict} is {len(told)} times in {log}"
    presented = [value for name in TOKEN_HEADERS for value in request.headers.all(name)]
    parts = [part for compact in (case.compact, *case.signed) for part in compact.split(".")[1:]]
    private = {value for value in (TOKEN, MARK, *presented, *parts) if len(value) > 16}
    text = "\n".join(log)
    assert text.isprintable(), f"more than a line: {log}"
    # An id is to be in the log: a sender that makes an id of its token has told it.
    for value in request.headers.all("webhook-id"):
        text = text.replace(value.strip(" \t"), "") if value.strip() else text
    assert not [value for value in private if value in text], f"a secret is in {log}"


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_LINES = _Lines()


@contextlib.contextmanager
def captured() -> Iterator[list[str]]:
    """Give the log lines of one request."""
    _LINES.lines = []
    yield _LINES.lines


def fuzz(count: int, *, chance: int, folder: Path) -> Fuzzer:
    """Send so many requests; raises with the smallest case that breaks a promise."""
    logger = logging.getLogger("receiver")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_LINES)
    fuzzer = Fuzzer(folder)
    try:
        with asyncio.Runner() as runner:
            runner.run(fuzzer.receiver.open())
            try:
                for start in range(0, count, BATCH):
                    _batch(fuzzer, runner, min(BATCH, count - start), chance + start)
            finally:
                runner.run(fuzzer.receiver.close())
    finally:
        logger.removeHandler(_LINES)
        logger.setLevel(level)
        logger.propagate = propagate
    return fuzzer


def _batch(fuzzer: Fuzzer, runner: asyncio.Runner, count: int, chance: int) -> None:
    # In batches: Hypothesis remembers every example of a run.
    @seed(chance)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases())
    def run(case: Case) -> None:
        runner.run(fuzzer.check(case))

    run()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pushkit-fuzz-") as folder:
        fuzzer = fuzz(arguments.cases, chance=arguments.seed, folder=Path(folder))
    for answer, count in fuzzer.answers.most_common():
        sys.stdout.write(f"{count:9} {answer}\n")
    seconds = time.monotonic() - started
    sys.stdout.write(f"{fuzzer.cases} cases in {seconds:.0f} s (seed {arguments.seed})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A short run of `fuzz_receiver.py`, and a proof that each oracle detects a missing check.

The long run: `python -m tests.verification.soak.fuzz_receiver --seed 7 --cases 1000000`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pushkit.a2a import decode_update
from pushkit.errors import InboundError, InvalidSignatureError
from pushkit.keys.jwk import Algorithm
from pushkit.keys.jwks import keys_by_kid
from pushkit.keys.primitives import signature_holds
from pushkit.signing import notification_jwt
from pushkit.webhook import TOKEN_HEADERS
from receiver.inbox.store import accepted_before
from receiver.refusals import problem
from receiver.request import Answer
from receiver.selection import HeldKeys, Stated
from receiver.tokens import check_secrets, read_secrets
from tests.long_runs import examples
from tests.verification.soak.fuzz_receiver import STORED, BrokenPromiseError, fuzz
from tests.verification.soak.fuzzing.kinds import KINDS
from tests.verification.soak.fuzzing.oracles import ORACLES
from tests.verification.soak.fuzzing.parties import parties

CASES = 400  # within which an oracle detects a missing check
# Answers that must have come: otherwise the fuzzer does not get past the first checks.
MET = (
    *("202 accepted", "200 duplicate", "409 id_conflict", "404 task_not_expected"),
    *("401 invalid_signature", "401 digest_mismatch", "401 invalid_token", "401 wrong_audience"),
    *(
        "401 stale_timestamp",
        "403 unknown_sender",
        "400 malformed_request",
        "422 unrecognised_body",
    ),
)


async def test_no_request_breaks_a_promise_at_any_door(tmp_path: Path) -> None:
    fuzzer = await fuzz(2, range(examples(200)), folder=tmp_path)

    assert not [answer for answer in MET if not fuzzer.answers[answer]], fuzzer.answers
    assert not [kind.name for kind in KINDS if not fuzzer.kinds[kind.name]]


async def test_a_case_is_the_same_by_itself(tmp_path: Path) -> None:
    for name in ("all", "one"):
        (tmp_path / name).mkdir()
    cases = [
        await fuzz(1, numbers, folder=tmp_path / name, doors=["asgi"])
        for name, numbers in (("all", range(20)), ("one", range(19, 20)))
    ]
    last = cases[1].answers

    assert last.total() >= 1
    assert not last - cases[0].answers


# --- each oracle sees ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Weakened:
    """A receiver without one of its checks, and the oracle that must detect it."""

    oracle: str
    checks: Mapping[str, Any]  # the replaced functions, each with its replacement
    among: Collection[str]  # the senders whose notifications are sent
    door: str  # the door that it stands behind


def passes(*_: object, **__: object) -> None:
    """Check nothing."""


def refuses(*_: object, **__: object) -> None:
    raise InvalidSignatureError("as always")


def always(*_: object, **__: object) -> bool:
    return True


def any_claims(unverified: notification_jwt.UnverifiedJwt, key: Any, **_: object) -> object:
    verified = notification_jwt.VerifiedJwt
    return notification_jwt._read_claims(verified, unverified.claims, key.kid)


def any_algorithm(unverified: notification_jwt.UnverifiedJwt, key: Any, **_: object) -> object:
    return notification_jwt.verify_signature(unverified, key)


def by_any_padding(key: Any, data: bytes, signature: bytes) -> bool:
    keys = [replace(key, algorithm=algorithm) for algorithm in (Algorithm.RS256, Algorithm.PS256)]
    return any(signature_holds(one, data, signature) for one in keys)


def everybodys_keys(stated: Stated) -> list[HeldKeys]:
    keys = keys_by_kid(key.to_verification_key() for party in parties() for key in party.keys)
    return [HeldKeys(entry.sender, keys) for entry in stated.entries]


def whatever_its_issuer(place: Any, _: object) -> Any:
    return place.entries


def lenient_base64(segment: str, _: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "==")


def the_first_token(headers: Any) -> str | None:
    return next((value for name in TOKEN_HEADERS for value in headers.all(name)), None)


def every_token_is_known(claims: Any, request: Any) -> object:
    secret = read_secrets(claims, request)
    return secret._replace(static_token=secret.token is not None)


def any_secret(claims: Any, secrets: Any, registered: Any, trail: Any) -> object:
    try:
        return check_secrets(claims, secrets, registered, trail)
    except InboundError:
        return None


def nothing_before(_ids: Any) -> Any:
    yield from ()
    return {}


def accepted_with_any_body(ids: Any) -> Any:
    found = yield from accepted_before(ids)
    return dict.fromkeys(found, "")


def admits(*_: object, **__: object) -> Any:
    yield from ()


def stores_nothing(notifications: Any) -> Any:
    yield from ()
    return {(each.sender, each.delivery_id): 1 for each in notifications}


def telling(*refusal: Any) -> Answer:
    answer = problem(*refusal)
    return replace(answer, body=answer.body[:-1] + b', "detail": "the key is unknown"}')


def logging_what_came(claims: Any, request: Any) -> object:
    logging.getLogger("receiver").info("secrets: %s", dict(request.headers))
    return read_secrets(claims, request)


def breaking_on_what_is_new(body: bytes, stated: str | None = None) -> object:
    if not body.startswith(b'{"statusUpdate"'):
        raise KeyError("statusUpdate")
    return decode_update(body, stated)


HTTP = [party.name for party in parties() if party.name.startswith("http-")]
JWT = [party.name for party in parties() if party.name.startswith("jwt-")]
HOOKS = ["hooks-v1", "hooks-v1a"]
UNSIGNED = [party.name for party in parties() if party.name.startswith("unsigned")]
MINTED = ["registered", "bound", "bound-by-http", "minted", "unsigned-minted"]
SIGNING = "pushkit.signing"


def row(
    oracle: str,
    check: str,
    by: object,
    among: Collection[str],
    *,
    and_: Mapping[str, Any] | None = None,
    door: str = "asgi",
) -> Any:
    checks = {check: by, **(and_ or {})}
    weakened = Weakened(oracle=oracle, checks=checks, among=among, door=door)
    of = "+".join(sorted({name.partition("-")[0] for name in among}))
    return pytest.param(weakened, id=f"{oracle}:{check.rpartition('.')[2]}:{of}")


WEAKENED = [
    row("answered", "receiver.notification.decode_update", breaking_on_what_is_new, JWT),
    row("genuine", "receiver.verification.prove_body", refuses, ["every"]),
    row("silence", "receiver.refusals.problem", telling, JWT),
    row("logged", "receiver.refusals.RepeatedLog.due", passes, JWT),
    row("discretion", "receiver.verification.read_secrets", logging_what_came, JWT),
    row("discretion", "receiver.app.HideMalformedRequests.filter", always, JWT, door="app"),
    row("signature", "receiver.signatures.verify_signature", any_claims, JWT),
    row("signature", f"{SIGNING}.http_message_signatures.signature_holds", always, HTTP),
    row("signature", "receiver.signatures.check_webhook_signature", passes, HOOKS),
    row("own_key", "receiver.verification.keys_at_hand", everybodys_keys, JWT),
    row("own_key", "receiver.verification.keys_at_hand", everybodys_keys, HTTP),
    row(
        "algorithm",
        f"{SIGNING}.notification_jwt._names_algorithm",
        always,
        ["jwt-rs256", "jwt-ps256"],
        and_={f"{SIGNING}.notification_jwt.signature_holds": by_any_padding},  # each is enough
    ),
    row("algorithm", "receiver.signatures.verify_signature", any_algorithm, ["narrow"]),
    row("one_reading", "pushkit.bounded_json._object_without_duplicates", dict, JWT),
    row("one_reading", f"{SIGNING}.jose.b64url_decode", lenient_base64, JWT),
    row("body", "receiver.signatures.check_body", passes, ["samples", "trpc", *JWT]),
    row("body", "receiver.signatures.check_content_digest", passes, HTTP),
    row("window", "receiver.signatures.check_times", passes, JWT),
    row("window", "receiver.signatures.check_times", passes, HTTP),
    row("window", "receiver.signatures.check_timestamp", passes, HOOKS),
    row("expiry", f"{SIGNING}.scheme.check_expiry", passes, JWT),
    row("expiry", f"{SIGNING}.scheme.check_expiry", passes, HTTP),
    row("beginning", "receiver.signatures.check_not_before", passes, JWT),
    row("audience", "receiver.signatures.check_audience", passes, JWT),
    row("audience", f"{SIGNING}.http_message_signatures.signature_holds", always, HTTP),
    row(
        *("issuer", "receiver.selection._possible", whatever_its_issuer, JWT),
        and_={"receiver.signatures.check_issuer": passes},  # each alone is enough
    ),
    row("coverage", f"{SIGNING}.http_message_signatures.required_components", lambda _: (), HTTP),
    row("coverage", f"{SIGNING}.http_message_signatures.signature_holds", always, HTTP),
    row("ids", "receiver.signatures.check_webhook_id", passes, JWT),
    row("token", "receiver.verification.check_secrets", any_secret, [*JWT, *HTTP, *UNSIGNED]),
    row("token", "receiver.verification.read_secrets", every_token_is_known, [*JWT, *UNSIGNED]),
    row("token", "receiver.tokens.read_token", the_first_token, JWT),
    row(
        "credentials",
        "receiver.verification.check_secrets",
        any_secret,
        ["credentials", "minted"],
    ),
    row(
        *("once", "receiver.accepting.accepted_before", nothing_before),
        [*JWT, *HOOKS, "samples"],
        and_={  # each alone is enough
            "receiver.service_state.ServiceState.accepted_before": passes,
            "receiver.accepting.store_rows": stores_nothing,
        },
    ),
    row(
        *("conflict", "receiver.accepting.accepted_before", accepted_with_any_body),
        [*JWT, *UNSIGNED],
        and_={"receiver.accepting._hash_of": lambda _: ""},
    ),
    row("task", "receiver.accepting.check_expected", admits, MINTED),
    row("stored", "receiver.accepting.store_rows", stores_nothing, HOOKS),
]


@pytest.mark.parametrize("weakened", WEAKENED)
async def test_a_check_that_is_taken_out_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weakened: Weakened
) -> None:
    for check, by in weakened.checks.items():
        monkeypatch.setattr(check, by)

    with pytest.raises(BrokenPromiseError) as broken:
        await fuzz(
            1,
            range(CASES),
            folder=tmp_path,
            doors=[weakened.door],
            among=weakened.among,
            oracles=[weakened.oracle],
        )

    assert broken.value.oracle == weakened.oracle


def test_every_oracle_has_a_check_that_it_is_shown_to_guard() -> None:
    shown = {weakened.values[0].oracle for weakened in WEAKENED}

    assert shown == {*ORACLES, STORED}

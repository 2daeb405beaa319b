from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver.steps import Step
from tests.system.cli.conftest import ISSUER, TOKEN, UPDATE, Captured, Ran, Run, Webhook

pytestmark = pytest.mark.usefixtures("jwks")


def sent(run: Run, webhook: Webhook, *options: str, update: bytes = UPDATE) -> Captured:
    """Send a genuine request; `jwks.json` holds its sender's keys."""
    to = ["--to", webhook.url, "--issuer", ISSUER, "--allow", "127.0.0.1:*", "--token", TOKEN]
    assert run("send", "-", *to, *options, stdin=update).status == 0
    [request] = webhook.requests
    return request


@pytest.fixture
def captured(pushkit_command: Run, webhook: Webhook) -> Captured:
    return sent(pushkit_command, webhook, "--seq", "7")


def as_http(captured: Captured, body: bytes | None = None, line_end: str = "\r\n") -> bytes:
    lines = [f"POST {captured.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in captured.headers]
    head = line_end.join([*lines, "", ""])
    return head.encode() + (captured.body if body is None else body)


def as_json(captured: Captured) -> bytes:
    document = {
        "method": "POST",
        "target": captured.target,
        "headers": dict(captured.headers),
        "body": captured.body.decode(),
    }
    return json.dumps(document).encode()


CHECKED = ("sender", "signature", "time", "issuer", "audience", "ids", "token", "body", "content")
OF_A_RECEIVER = ("request", "size", "rate", "replay", "task", "stored")
MARKS = {"✓": "passed", "✗": "refused"}
SAID = ("not checked", "would pass", "would refuse, too")


def results(ran: Ran) -> dict[str, str]:
    """The result of every step, by name."""
    found: dict[str, str] = {}
    for line in ran.out.splitlines():
        mark, _, rest = line.partition(" ")
        if mark not in "✓✗·":
            continue
        if rest.startswith("not reached: "):
            found |= dict.fromkeys(rest.removeprefix("not reached: ").split(", "), "not reached")
            continue
        name, _, says = rest.partition(" ")
        said = [each for each in SAID if says.strip().startswith(each)]
        found[name] = MARKS.get(mark) or said[0]
    assert set(found) == {step.word for step in Step}
    return found


def failing(ran: Ran) -> list[str]:
    return [name for name, found in results(ran).items() if found in ("refused", SAID[2])]


@pytest.fixture
def verify(pushkit_command: Run, webhook: Webhook) -> Run:
    def run(request: bytes, **changes: str) -> Ran:
        options = {
            "jwks": "jwks.json",
            "issuer": ISSUER,
            "audience": webhook.url,
            "token": TOKEN,
            **changes,
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        return pushkit_command("verify", "-", *flags, stdin=request)

    return run


def test_a_genuine_request_is_verified(verify: Run, captured: Captured) -> None:
    ran = verify(as_http(captured))
    assert (ran.status, ran.err) == (0, "")
    assert results(ran) == dict.fromkeys(CHECKED, "passed") | dict.fromkeys(
        OF_A_RECEIVER, "not checked"
    ), ran.out
    assert "PyJWT agrees" in ran.out
    assert "status-update of A2A 1.0" in ran.out
    assert f"delivery         {captured.header('webhook-id')}" in ran.out
    assert "task             task-1" in ran.out
    assert "seq              7" in ran.out


def test_every_check_is_listed_with_what_was_found_and_expected(
    verify: Run, captured: Captured, webhook: Webhook
) -> None:
    here, sender = "https://other.example.com/", "https://another-agent.example.com"
    ran = verify(
        as_http(captured, captured.body.replace(b"WORKING", b"COMPLETED")),
        audience=here,
        issuer=sender,
        token="another",
        at="2026-01-01T00:00:00Z",
    )
    assert ran.status == 1
    found = results(ran)
    wrong = ["sender", "time", "issuer", "audience", "token", "body"]
    assert failing(ran) == wrong
    assert found["sender"] == "refused"
    assert {found[name] for name in wrong[1:]} == {"would refuse, too"}
    assert found["signature"] == found["ids"] == found["content"] == "would pass"
    assert f"`aud` is {webhook.url}, expected {here}" in ran.out
    assert f"`iss` is {ISSUER}, expected {sender}" in ran.out
    assert ran.error == f"6 steps fail: {', '.join(wrong)}"


def test_what_an_unknown_key_signed_is_checked_as_far_as_it_goes(
    verify: Run, captured: Captured, pushkit_command: Run
) -> None:
    pushkit_command("keys", "new", "--keys", "others.json")
    pushkit_command("keys", "export", "--keys", "others.json", "--out", "others-jwks.json")
    [known] = json.loads(Path("others-jwks.json").read_text())["keys"]
    ran = verify(as_http(captured), jwks="others-jwks.json", audience="https://other.example.com/")
    assert failing(ran) == ["signature", "audience"]
    assert f"expected {known['kid']}" in ran.out
    assert "unproven claims" in ran.out


def test_a_jwt_that_is_not_valid_yet_is_invalid(verify: Run, captured: Captured) -> None:
    later = datetime.now(UTC) + timedelta(seconds=900)
    now = datetime.now(UTC).timestamp()
    claims = {"iat": now, "exp": now + 60, "nbf": later.timestamp()}
    token = unproven({"iss": ISSUER, **claims})
    ran = verify(tampered(captured, "Authorization", f"Bearer {token}"))
    assert "the signature is not valid yet (" in ran.out
    assert f"not before {later:%Y-%m-%dT%H:%M:%SZ}" in ran.out


def unproven(claims: dict[str, object]) -> str:
    """A JWT whose signature is invalid."""
    claims = {"request_body_sha256": "0", **claims}
    segments = [json.dumps(part).encode() for part in ({"alg": "ES256", "kid": "k"}, claims)]
    token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in segments)
    return f"{token}.AAAA"


def test_what_a_stranger_signed_writes_no_lines_of_its_own(verify: Run, captured: Captured) -> None:
    issuer = "x\n* token      is the expected one\x1b[2J"
    token = unproven({"iss": issuer, "iat": 1})
    ran = verify(tampered(captured, "Authorization", f"Bearer {token}"))
    assert ran.status == 1
    assert "\x1b" not in ran.out
    assert "would refuse, too: `iss` is x\\n* token" in ran.out
    assert results(ran)["token"] == "would pass"


def saved_as(captured: Captured, **changes: object) -> str:
    """Write a request as `listen --save` does, with changes beside it; return its file's name."""
    Path("saved.http").write_bytes(as_http(captured))
    keys = json.loads(Path("jwks.json").read_text())
    beside = {"received_at": "2026-01-01T00:00:00Z", "audience": "https://client.example.com/"}
    beside |= {"issuer": ISSUER, "answered": "202 accepted", "jwks": keys}
    Path("saved.json").write_text(json.dumps({**beside, **changes}))
    return "saved.http"


def test_a_saved_request_moves_no_cursor(pushkit_command: Run, captured: Captured) -> None:
    ran = pushkit_command("verify", saved_as(captured, answered="202 \a\u202e"))
    assert "answered 202 \\x07\\u202e when" in ran.out


def test_nothing_is_proven_by_a_signature_that_no_key_has_checked(
    pushkit_command: Run, captured: Captured, webhook: Webhook
) -> None:
    now = datetime.now(UTC).isoformat()
    name = saved_as(captured, jwks=None, received_at=now, audience=webhook.url)
    ran = pushkit_command("verify", name)
    assert (ran.status, results(ran)["signature"]) == (0, "not checked")
    assert "unproven: no signature was checked" in ran.out
    assert "proven by" not in ran.out


def test_a_saved_request_without_an_offset_from_utc_is_an_error(
    pushkit_command: Run, captured: Captured
) -> None:
    ran = pushkit_command("verify", saved_as(captured, received_at="2026-01-01T00:00:00"))
    assert ran.error == "saved.json: expected what `listen --save` writes beside a request"


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_request_may_be_verified_for_any_moment(
    pushkit_command: Run, captured: Captured, at: str
) -> None:
    ran = pushkit_command("verify", saved_as(captured), "--at", at)
    assert results(ran)["time"] == "refused"


@dataclass
class Schemes:
    """A genuine request that carries every signature."""

    verify: Run
    request: Captured
    secrets: Path

    def by(self, *schemes: str, body: bytes | None = None, **changes: str | None) -> Ran:
        secrets = str(self.secrets) if "standard-webhooks" in schemes else None
        options = {"webhook-secrets-file": secrets, **changes}
        flags = [f"--scheme={scheme}" for scheme in schemes]
        flags += [f"--{name}={value}" for name, value in options.items() if value is not None]
        return self.verify("verify", "-", *flags, stdin=as_http(self.request, body))


@pytest.fixture
def every_scheme(pushkit_command: Run, webhook: Webhook, tmp_path: Path) -> Schemes:
    secrets = tmp_path / "secrets.txt"
    secrets.write_text(generate_webhook_secret())
    flags = [f"--scheme={scheme.value}" for scheme in Scheme]
    request = sent(pushkit_command, webhook, *flags, f"--webhook-secrets-file={secrets}")
    return Schemes(pushkit_command, request, secrets)


def test_every_scheme_is_verified(every_scheme: Schemes, webhook: Webhook) -> None:
    schemes = [scheme.value for scheme in Scheme]
    ran = every_scheme.by(*schemes, jwks="jwks.json", audience=webhook.url)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("proven by ")] == schemes
    for step in ("signature", "time", "ids", "body"):
        own = [line.split()[2] for line in lines if line.startswith(f"✓ {step}")]
        assert own == [f"{scheme}:" for scheme in schemes]
    delivery_id = every_scheme.request.header("webhook-id")
    assert ran.out.count(f"delivery         {delivery_id}") == len(schemes)


@pytest.mark.parametrize(
    ("scheme", "options", "status", "says"),
    [
        pytest.param("http-message-signatures", {"jwks": "jwks.json"}, 1, "--audience", id="url"),
        pytest.param("http-message-signatures", {}, 2, "--jwks", id="jwks"),
        pytest.param(
            "http-message-signatures",
            {"jwks": "jwks.json", "audience": ""},
            1,
            "--audience",
            id="an empty url",
        ),
        pytest.param(
            "standard-webhooks",
            {"webhook-secrets-file": None},
            2,
            "--webhook-secrets-file",
            id="key",
        ),
    ],
)
def test_what_a_scheme_is_held_against_must_be_given(
    every_scheme: Schemes, scheme: str, options: dict[str, Any], status: int, says: str
) -> None:
    ran = every_scheme.by(scheme, **options)
    assert ran.status == status
    assert says in ran.err


def test_another_url_is_not_the_one_that_was_signed(every_scheme: Schemes) -> None:
    elsewhere = "https://client.example.com/"
    ran = every_scheme.by("http-message-signatures", jwks="jwks.json", audience=elsewhere)
    assert ran.status == 1
    assert "invalid" in ran.out


@pytest.mark.parametrize(
    "write", [as_http, lambda captured: as_http(captured, line_end="\n"), as_json]
)
def test_a_capture_may_have_either_line_end_or_be_json(
    verify: Run, captured: Captured, write: Callable[[Captured], bytes]
) -> None:
    assert verify(write(captured)).status == 0


def test_a_capture_may_be_a_file(pushkit_command: Run, captured: Captured, tmp_path: Path) -> None:
    (tmp_path / "captured.http").write_bytes(as_http(captured))
    ran = pushkit_command("verify", "captured.http", "--jwks", "jwks.json")
    assert ran.status == 0
    for name in ("issuer", "audience", "token"):
        assert results(ran)[name] == "not checked"
        assert f"--{name} was not given" in ran.out


@pytest.mark.parametrize("write", [as_http, as_json])
def test_an_altered_body_is_refused(
    verify: Run, captured: Captured, write: Callable[[Captured], bytes]
) -> None:
    altered = replace(captured, body=captured.body.replace(b"WORKING", b"COMPLETED"))
    ran = verify(write(altered))
    assert (ran.status, ran.error) == (1, "1 step fails: body")
    assert hashlib.sha256(captured.body).hexdigest() in ran.out
    assert hashlib.sha256(altered.body).hexdigest() in ran.out


def test_a_line_end_that_an_editor_added_is_another_body(verify: Run, captured: Captured) -> None:
    ran = verify(as_http(captured, captured.body + b"\n"))
    assert results(ran)["body"] == "refused"


def tampered(captured: Captured, name: str, value: str) -> bytes:
    headers = [(k, value if k.lower() == name.lower() else v) for k, v in captured.headers]
    return as_http(replace(captured, headers=headers))


def test_a_version_that_the_body_is_not_of_is_said(verify: Run, captured: Captured) -> None:
    ran = verify(tampered(captured, "A2A-Version", "0.3"))
    assert ran.status == 0  # no signature of this scheme covers it
    assert "status-update of A2A 1.0; its sender states '0.3'" in ran.out


def test_a_kind_that_no_version_has_is_verified(
    pushkit_command: Run, webhook: Webhook, verify: Run
) -> None:
    later = b'{"messageUpdate": {"taskId": "task-1", "generation": 7}}'
    ran = verify(as_http(sent(pushkit_command, webhook, update=later)))
    assert ran.status == 0
    assert "unknown kind 'messageUpdate' of A2A 1.0" in ran.out
    assert "task             task-1" in ran.out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"audience": "https://other.example.com/"}, "fails: audience", id="aud"),
        pytest.param(
            {"issuer": "https://other.example.com"}, "2 steps fail: sender, issuer", id="issuer"
        ),
        pytest.param({"token": "another"}, "1 step fails: token", id="token"),
        pytest.param({"audience": "other"}, "audience: expected", id="audience that is no URL"),
        pytest.param({"jwks": "none.json"}, "none.json: No such file", id="no JWK Set"),
        pytest.param({"jwks": "."}, "--jwks", id="a folder for a JWK Set"),
        pytest.param({"jwks": "keys.json.lock"}, "not a JWK Set", id="another file"),
    ],
)
def test_what_does_not_hold_is_said_in_one_line(
    verify: Run, captured: Captured, changes: dict[str, str], says: str
) -> None:
    ran = verify(as_http(captured), **changes)
    assert ran.status == 1
    assert says in ran.error


def test_an_id_that_is_not_the_signed_one_is_refused(verify: Run, captured: Captured) -> None:
    ran = verify(tampered(captured, "webhook-id", "dlv_other"))
    assert ran.error == "1 step fails: ids"
    assert f"signed {captured.header('webhook-id')}, found dlv_other" in ran.out


def test_a_request_without_a_signature_is_refused(verify: Run, captured: Captured) -> None:
    ran = verify(tampered(captured, "Authorization", "Bearer abc"))
    assert ran.error == "1 step fails: signature"
    assert "no JWT" in ran.out
    found = results(ran)
    unread = ("time", "issuer", "audience", "ids", "body")
    assert [found[name] for name in unread] == ["not reached"] * len(unread)
    assert found["token"] == found["content"] == "would pass"


@pytest.mark.parametrize(("minutes", "status"), [(0, 0), (4, 0), (7, 1), (-4, 0), (-7, 1)])
def test_it_is_verified_for_the_moment_that_is_given(
    verify: Run, captured: Captured, minutes: int, status: int
) -> None:
    moment = datetime.now(UTC) + timedelta(minutes=minutes)
    ran = verify(as_http(captured), at=f"{moment:%Y-%m-%dT%H:%M:%SZ}")
    assert ran.status == status
    if status:
        assert "check the clocks" in ran.out


def test_the_tolerance_can_be_narrowed(verify: Run, captured: Captured) -> None:
    moment = datetime.now(UTC) + timedelta(minutes=1)
    ran = verify(as_http(captured), at=f"{moment:%Y-%m-%dT%H:%M:%S%z}", tolerance="10")
    assert "expected within 10 s" in ran.out


@pytest.mark.parametrize(
    ("request_bytes", "says"),
    [
        pytest.param(b"", "no HTTP/1.1 request", id="nothing"),
        pytest.param(b"POST / HTTP/1.1\r\nA: b\r\n", "no HTTP/1.1 request", id="no empty line"),
        pytest.param(b"{", "the request file: not JSON", id="half JSON"),
        pytest.param(b'{"body":"x"}', "members `headers` and `body`", id="no headers"),
        pytest.param(b"POST http://[x HTTP/1.1\r\n\r\n", "the target is not a URL", id="no URL"),
        pytest.param(b"\xff\x00\xfe\r\n\r\n", "no HTTP/1.1 request", id="bytes"),
    ],
)
def test_what_is_no_request_is_said_in_one_line(
    verify: Run, captured: Captured, request_bytes: bytes, says: str
) -> None:
    assert captured.body
    ran = verify(request_bytes)
    assert ran.status == 1
    assert says in ran.error


def test_another_method_is_refused_before_all_steps_and_these_are_checked_all_the_same(
    verify: Run, captured: Captured
) -> None:
    ran = verify(as_http(captured).replace(b"POST ", b"PUT ", 1))
    assert ran.error == "1 step fails: request"
    assert {results(ran)[name] for name in CHECKED if name != "sender"} == {"would pass"}


def test_a_sender_that_does_not_sign_is_verified_by_its_token(
    pushkit_command: Run, captured: Captured
) -> None:
    call = ["verify", "-", "--profile", "unsigned-secret-only", "--token"]
    ran = pushkit_command(*call, TOKEN, stdin=as_http(captured))
    assert (ran.status, ran.err) == (0, "")
    passed = [name for name, found in results(ran).items() if found == "passed"]
    assert passed == ["token", "content"]
    assert "unproven: no signature was checked" in ran.out
    assert pushkit_command(*call, "another", stdin=as_http(captured)).status == 1


def test_of_several_schemes_the_one_that_refuses_is_named(
    every_scheme: Schemes, webhook: Webhook
) -> None:
    body = UPDATE.replace(b"WORKING", b"COMPLETED")
    schemes = [scheme.value for scheme in Scheme]
    ran = every_scheme.by(*schemes, body=body, jwks="jwks.json", audience=webhook.url)
    refused = [line.split()[2] for line in ran.out.splitlines() if line.startswith("✗ body")]
    assert (ran.error, refused) == ("1 step fails: body", [f"{scheme}:" for scheme in schemes])

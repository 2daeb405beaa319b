"""What is wrong with a call, or with what it names, and what each command says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pushkit.keys.jwk import Algorithm, generate_key, signing_key_to_pem
from tests.system.cli.conftest import ISSUER, RECEIVER_TOML, UPDATE, Ran, Run

CARD = "pushkit card verify card.json --key agent.pem"
SEND = f"pushkit send update.json --to http://127.0.0.1:1/ --issuer {ISSUER}"
DOCTOR = "pushkit doctor http://127.0.0.1:1/ --token a-token-of-16-or-more"
WORKER = f"pushkit worker --database outbox.db --issuer {ISSUER}"
ALERT = f"{WORKER} --alert-command ' '"
LISTEN = "receiver listen --listen 127.0.0.1:0"
OUTBOX = "--database outbox.db"
SEALED = signing_key_to_pem(generate_key(Algorithm.ES256), b"a passphrase")
AGE = "expected a number and s, m, h or d"
NO_ALERT = "--alert-command: found an empty text, expected a program"

# The call, and what is said below its usage.
USAGE = {
    **dict.fromkeys(
        (
            *("pushkit nonsense", "pushkit keys nonsense", "pushkit keys revoke"),
            *("pushkit send", "pushkit verify", "receiver nonsense", "receiver serve --nonsense"),
            *("pushkit card verify", "pushkit card verify card.json", "pushkit card sign"),
            *("pushkit card inspect", "pushkit card nonsense"),
            "pushkit card canonicalize card.json --form none",
            f"{CARD} --trust cards.toml",
            f"{CARD} card.json",
            f"{CARD} --admit none",
            f"{CARD} --origin https://a.example.com",
            "pushkit card verify https://a --trust cards.toml --origin https://a.example.com",
            f"{WORKER} --nonsense",
            *(
                f"pushkit outbox {call} {OUTBOX}"
                for call in (
                    *("redrive", "redrive dlv_1 --all", "resend", "resend dlv_1 --all"),
                    *("resend --all --cancelled-by operator", "resend --all --state dead"),
                    *("retry-now", "retry-now dlv_1 --owner alice", "cancel", "purge"),
                    *("purge --older-than soon", "list --state lost", "show"),
                )
            ),
            *(
                f"pushkit subscriptions {call} {OUTBOX}"
                for call in (
                    *("pause", "disable sub_1 --all", "remove --yes", "list --state lost"),
                    "list --origin client.example.com",
                )
            ),
            *(f"receiver inbox redrive {call}" for call in ("", "1 --all", "--all --task task-1")),
        ),
        "Usage: ",
    ),
    # options without effect
    f"pushkit outbox purge {OUTBOX} --keep 1 --state dead": "--state is only for --older-than",
    f"pushkit outbox resend {OUTBOX} d --from-seq 3": "--from-seq is only for a filter or --all",
    f"pushkit outbox resend {OUTBOX} d --state cancelled": "--state is only for a filter or --all",
    f"{DOCTOR} --jwks jwks.json": "--jwks is only for --sender",
    f"{DOCTOR} --run true": "--run is only for --sender",
    "pushkit doctor --sender --rounds 3": "--rounds is only for a receiver, without --sender",
    "pushkit keys new --max-age 60": "--max-age is only for a new file, but keys.json exists",
    "pushkit keys rotate --force": "--force is only for --now",
    "pushkit keys export --force": "--force is only for --out",
    "receiver check --keys keys.json": "--keys is only for --url",
    "receiver check --url --settings": "--settings is only for a check without --url",
    "receiver check --sender agent": "--sender is only for --url",
    "receiver expect --overlap 60": "--overlap is only for --replaces",
    "receiver inbox purge --keep 1 --status dead": "--status is only for --older-than",
    # options that contradict each other, or are missing
    "pushkit doctor": "expected URL and --token; or --sender",
    "pushkit doctor http://127.0.0.1:1/ --sender": "expected URL and --token; or --sender",
    "pushkit trigger completed": "found 'completed' alone, expected one KIND or more",
    f"{LISTEN} --jwks jwks.json --any-key": "expected one of them",
    f"{LISTEN} --profile unsigned-secret-only --any-key": "expected no keys",
    "pushkit secrets generate --standby": "--standby is only for a FILE",
    "pushkit secrets status": "Missing option '--database'",
    "pushkit verify request.json": "Only a request of `listen --save` has its keys beside it",
    # values
    **{f"{SEND} --timeout {value}": "'--timeout'" for value in ("0", "nan")},
    f"{SEND} --seq 0": "'--seq'",
    "pushkit keys use HS256": "'ALG'",
    **{
        f"receiver expect --expires-in {value}": "'--expires-in'"
        for value in ("0", "99999999999999999")
    },
    **{f"{SEND} --id 'a{character}b'": "'--id'" for character in (".", "\r\n")},
    f"{SEND} --profile none": "'--profile'",
    **{SEND.replace("update.json", name): f"'{name}'" for name in ("none.json", "folder")},
    "pushkit verify update.json --jwks jwks.json --at yesterday": "'--at'",
    **{
        f"pushkit verify update.json --jwks jwks.json --tolerance {value}": "'--tolerance'"
        for value in ("-1", "99999999999999999")
    },
    **{f"{WORKER} --waits '{waits}'": AGE for waits in ("", "5s,", "5s;5m", "five")},
    ALERT: NO_ALERT,
    f"{ALERT} --alert-log": NO_ALERT,
}

# The call, and what is in the one line that says why it cannot be done.
ERRORS = {
    **{
        f"pushkit keys {command} --keys none.json": "none.json: does not exist"
        for command in ("list", "rotate", "export")
    },
    "pushkit keys revoke unknown": "unknown",
    "pushkit keys new new.json --passphrase-file empty": "empty: empty, expected a passphrase",
    "pushkit keys import broken.json --keys new.json": "broken.json: not a private key in PEM",
    "pushkit keys import agent.pem --keys new.json": "agent.pem: expected a private key",
    "pushkit keys import sealed.pem --keys new.json": "sealed.pem: the private key is encrypted",
    "receiver check --config none.toml": "none.toml: No such file or directory; name the",
    "receiver serve --config none.toml": "none.toml: No such file or directory; name the",
    "receiver expect --config none.toml": "none.toml: No such file or directory; name the",
    **{
        f"receiver {command} --sender none": "--sender: found 'none', expected one of agent"
        for command in ("expect", "check --url")
    },
    "receiver expect --version 7": "'7' is not supported",
    CARD.replace("card.json", "none.json"): "No such file",
    CARD.replace("card.json", "broken.json"): "the card: not JSON",
    CARD.replace("agent.pem", "none.pem"): "No such file",
    CARD.replace("agent.pem", "keys.json"): "a key file with private keys",
    "pushkit card verify card.json --trust none.toml --origin https://a": "No such file",
    "pushkit card verify card.json --jwks none.json": "No such file",
    "pushkit card verify card.json --jwks ftp://a/jwks": "No such file",
    "pushkit card sign card.json --keys none.json": "does not exist",
    "pushkit card sign huge.json": "expected at most",
    "pushkit card sign jwks.json": "expected an agent card, which has a `name`; found keys",
    "pushkit card inspect https://10.0.0.1/card": "literal address",
    f"{SEND} --keys none.json": "none.json: does not exist",
    f"{SEND} --profile a2a-samples": "no RS256 key is active",
    f"{SEND} --allow 127.0.0.1": "expected host:port",
    f"{SEND} --token 'a\nb'": "token: expected",
    **{
        f"{SEND} --scheme standard-webhooks --webhook-secrets-file {name}": says
        for name, says in {
            "empty": "found none",
            "short": "3 bytes",
            "public": "which verifies; whsk_… signs",
            "latin": "not UTF-8; expected a text file with one webhook secret a line",
        }.items()
    },
    "receiver listen --listen nonsense": "expected host:port",
    f"{LISTEN} --jwks none.json": "none.json",
    f"{LISTEN} --forward nonsense": "http",
    f"{DOCTOR} --only nonsense": "expected some of genuine, retry",
    f"{DOCTOR} --observe ./none.sh": "no such command",
    f'{DOCTOR} --observe "echo \'x"': "a quote is not closed",
    "pushkit doctor http://127.0.0.1:1/ --token x": "at least 16",
    "receiver doctor --sender --only nonsense": "expected some of accepted",
    "receiver doctor --sender --listen nonsense": "expected host:port",
    "receiver doctor --sender --run ./none.sh": "no such command",
    f"{WORKER} --keys none.json --processes 2": "none.json",
    f"pushkit keys new {'x' * 300}": "File name too long",
    "pushkit keys new ''": ".: a folder, expected a file",
    "pushkit secrets generate ''": ".: a folder, expected a file",
}


@pytest.fixture(autouse=True)
def files(pushkit_command: Run, jwks: Path) -> None:
    """The files that the calls name."""
    folder = jwks.parent
    assert pushkit_command("keys", "export", "--format", "pem", "--out", "agent.pem").status == 0
    (folder / "update.json").write_bytes(UPDATE)
    (folder / "card.json").write_text('{"name": "agent", "version": "1"}')
    (folder / "broken.json").write_text("{")
    (folder / "huge.json").write_text('{"name": "' + "a" * 10_000_000 + '"}')
    (folder / "folder").mkdir()
    (folder / "empty").write_text("\n")
    (folder / "short").write_text("whsec_AAAA\n")
    (folder / "public").write_text("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=")
    (folder / "latin").write_bytes(b"\xff")
    (folder / "request.json").write_text('{"headers": {}, "body": "x"}')
    (folder / "sealed.pem").write_bytes(SEALED)
    (folder / "receiver.toml").write_text(RECEIVER_TOML)


@pytest.mark.parametrize("call", USAGE)
def test_a_wrong_call_ends_with_2_and_the_usage(
    run_line: Callable[[str], Ran], own_folder: Path, call: str
) -> None:
    ran = run_line(call)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: ")
    assert USAGE[call] in " ".join(ran.err.split())
    assert not (own_folder / "outbox.db").exists()


@pytest.mark.parametrize("call", ERRORS)
def test_what_cannot_be_done_is_one_line_and_status_1(
    run_line: Callable[[str], Ran], own_folder: Path, call: str
) -> None:
    ran = run_line(call)
    assert ran.status == 1
    assert ERRORS[call] in ran.error
    assert not any((own_folder / name).exists() for name in ("outbox.db", "new.json"))

"""`receiver check` and `receiver expect`: the configuration, and what is wrong with it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver.inbox.retention import InboxRetention
from receiver.settings import load_settings
from tests.system.cli.conftest import ISSUER, TOKEN, Ran, Run

CONFIG = f"""\
url = "https://client.example.com"
database = "inbox.db"

[[senders]]
name = "agent"
issuer = "{ISSUER}"
jwks_file = "jwks.json"
tokens = ["{TOKEN}"]
tasks = "bind"

[[callbacks]]
call = "handlers:seen"
"""


@pytest.fixture
def config(jwks: Path) -> Path:
    jwks.with_name("handlers.py").write_text("def seen(notification): ...\n")
    path = jwks.with_name("receiver.toml")
    path.write_text(CONFIG)
    return path


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the callbacks' module and its folder after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "handlers", raising=False)


@pytest.mark.parametrize("name", ["receiver.py", "pushkit.py", "receiver/__init__.py"])
def test_a_module_beside_the_configuration_that_hides_ours_is_refused(
    receiver_command: Run, config: Path, name: str
) -> None:
    hides = config.parent / name
    hides.parent.mkdir(exist_ok=True)
    hides.write_text("def seen(notification): ...\n")
    ran = receiver_command("check", "--config", str(config))
    assert ran.status != 0
    assert f"{hides} hides the package" in ran.err
    assert "give it another name" in ran.err


def settings_in(ran: Ran) -> dict[str, Any]:
    """Return the configuration that `check --settings` prints at the end."""
    found: dict[str, Any] = json.loads(ran.out[ran.out.index("{\n") :])
    return found


def test_check_prints_its_finding_first_and_the_configuration_only_when_asked(
    receiver_command: Run, config: Path
) -> None:
    ran = receiver_command("check", "--config", str(config))
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[:2] == [f"{config}: ok", "agent: 1 key"]
    assert "{" not in ran.out

    (config.parent / "inbox.db").mkdir()
    ran = receiver_command("check", "--settings")
    assert ran.status == 1
    assert ran.out.splitlines()[:2] == ["receiver.toml: not available: database", "agent: 1 key"]
    assert ran.err.startswith("database: error: ")
    document = settings_in(ran)
    assert document["url"] == "https://client.example.com"
    assert document["senders"][0]["tokens"] == ["***"]


def test_a_database_in_a_folder_that_is_missing_names_setting_and_folder(
    receiver_command: Run, pushkit_command: Run, config: Path
) -> None:
    folder = config.parent / "no" / "such"
    config.write_text(CONFIG.replace("inbox.db", "no/such/inbox.db"))
    says = f"{folder}/inbox.db: there is no folder {folder}: create it"
    assert receiver_command("check").err == f"database: error: {says}\n"
    assert receiver_command("migrate").error == f"database: {says}"
    for command in ("worker --issuer https://agent.example.com", "migrate"):
        ran = pushkit_command(*command.split(), "--database", f"{folder}/o.db")
        assert ran.error == f"database: {folder}/o.db: there is no folder {folder}: create it"


def test_check_tries_whether_the_inbox_can_be_made(
    receiver_command: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write every folder.
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    ran = receiver_command("check")
    assert ran.status == 1
    missing = "does not exist, and this process may not write its folder\n"
    assert ran.err == f"database: error: {config.parent / 'inbox.db'}: {missing}"


@pytest.mark.parametrize(
    ("listen", "found", "says"),
    [
        ("127.0.0.1:0", 0, "dashboard: ok, without a token"),
        ("0.0.0.0:0", 1, "dashboard: error: to listen on 0.0.0.0:0, a dashboard needs a token"),
    ],
)
def test_check_tries_whether_the_dashboard_may_be_served(
    receiver_command: Run, config: Path, listen: str, found: int, says: str
) -> None:
    config.write_text(f'{config.read_text()}\n[dashboard]\nlisten = "{listen}"\n')
    ran = receiver_command("check")
    assert ran.status == found
    assert says in (ran.out + ran.err)


@pytest.mark.parametrize("command", [["expect"], ["check", "--url"]])
def test_of_several_senders_one_must_be_named(
    receiver_command: Run, config: Path, command: list[str]
) -> None:
    another = CONFIG.partition("\n\n")[2].partition("\n\n")[0].replace('"agent"', '"other"')
    config.write_text(f"{CONFIG}\n{another}\n")
    ran = receiver_command(*command)
    assert ran.error == "--sender: found none, expected one of agent, other"


def test_check_says_what_schemes_leave_unproven_and_masks_their_secrets(
    receiver_command: Run, config: Path
) -> None:
    secret, written = generate_webhook_secret(), generate_webhook_secret()
    config.with_name("secrets.txt").write_text(f"{written}\n")
    schemes = f"""schemes = ["standard-webhooks"]
webhook_secrets = ["{secret}"]
webhook_secrets_file = "secrets.txt"
"""
    keys = f'issuer = "{ISSUER}"\njwks_file = "jwks.json"\n'
    config.write_text(CONFIG.replace(keys, schemes))
    ran = receiver_command("check", "--settings")
    assert (ran.status, ran.err) == (0, "")
    document = settings_in(ran)
    assert document["senders"][0]["schemes"] == ["standard-webhooks"]
    assert document["senders"][0]["webhook_secrets"] == ["***"]
    assert "agent: standard-webhooks: no audience is verified" in ran.out
    assert secret not in ran.out
    assert written not in ran.out


def test_check_takes_the_file_from_the_environment(
    receiver_command: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = config.rename(config.with_name("other.toml"))
    monkeypatch.setenv("RECEIVER_CONFIG", str(moved))
    assert receiver_command("check").status == 0


def test_where_the_state_is_comes_from_the_file_and_passwords_are_masked(
    receiver_command: Run, config: Path
) -> None:
    settings = 'database = "postgresql://user:PRIVATE@db/inbox?sslpassword=PRIVATE"\n'
    table = "[retention]\ndone_days = 3\nmax_done = 1000\nremember_hours = 48\n"
    config.write_text(CONFIG.replace('database = "inbox.db"\n', settings) + table)
    document = settings_in(receiver_command("check", "--settings"))
    assert document["database"] == "postgresql://user:***@db/inbox?sslpassword=***"
    assert document["retention"] == {
        "done_days": 3,
        "dead_days": "forever",
        "max_done": 1000,
        "remember_hours": 48,
        "expected_days": 90,
    }


def test_what_is_over_can_be_kept_for_ever_and_what_is_left_out_means_the_default(
    config: Path,
) -> None:
    config.write_text(CONFIG + '[retention]\ndone_days = "forever"\nexpected_days = "forever"\n')
    retention = load_settings(config).retention.made(InboxRetention)
    assert retention == InboxRetention(done=None, expected=None)
    config.write_text(CONFIG + "[retention]\n")
    assert load_settings(config).retention.made(InboxRetention) == InboxRetention()


def test_check_shows_a_kid_that_a_sender_chose_without_control_characters(
    receiver_command: Run, config: Path, tmp_path: Path
) -> None:
    keys = json.loads((tmp_path / "jwks.json").read_bytes())
    keys["keys"][0]["kid"] = "\x1b[2J\u202e\nagent: ok"
    (tmp_path / "jwks.json").write_text(json.dumps(keys))
    ran = receiver_command("check", "--config", str(config))
    assert r"  ES256  \x1b[2J\u202e\nagent: ok" in ran.out


def test_every_mistake_is_a_line(receiver_command: Run, config: Path) -> None:
    config.write_text(CONFIG.replace("issuer", "isuer").replace('"bind"', '"all"'))
    lines = receiver_command("check").err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: receiver.toml:") for line in lines)


@pytest.mark.parametrize(
    ("name", "says"), [("none.json", "none.json: No such file"), ("handlers.py", "not a JWK Set")]
)
def test_a_jwk_set_must_be_in_its_file(
    receiver_command: Run, config: Path, name: str, says: str
) -> None:
    config.write_text(CONFIG.replace("jwks.json", name))
    ran = receiver_command("check")
    assert ran.status == 1
    assert says in ran.error


def test_expect_mints_a_token(receiver_command: Run, config: Path) -> None:
    assert config.exists()
    configs = [json.loads(receiver_command("expect").out) for _ in range(2)]
    assert {config["url"] for config in configs} == {"https://client.example.com/a2a/push"}
    assert len({config["token"] for config in configs}) == 2


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
def test_expect_takes_what_it_is_for(receiver_command: Run, config: Path, version: str) -> None:
    assert config.exists()
    options = ["--sender", "agent", "--task-id", "task-1", "--expires-in", "60"]
    ran = receiver_command("expect", *options, "--version", version)
    assert ran.status == 0
    document = json.loads(ran.out)
    assert document["id" if version == "0.1" else "taskId"] == "task-1"
    config_of_version = document if version == "1.0" else document["pushNotificationConfig"]
    assert config_of_version["url"] == "https://client.example.com/a2a/push"


# --- what check tries ---------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["nothing", "garbage"])
def test_check_ends_with_1_if_the_certificate_cannot_be_had(
    receiver_command: Run, config: Path, found: str
) -> None:
    if found == "garbage":
        config.with_name("cert.pem").write_text("garbage")
        config.with_name("key.pem").write_text("garbage")
    config.write_text(CONFIG + '\n[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n')
    ran = receiver_command("check")
    assert ran.status == 1
    assert ran.err.startswith("tls: error: ")


def test_check_masks_the_user_and_the_query_of_every_url(
    receiver_command: Run, config: Path, unused_tcp_port: int
) -> None:
    text = CONFIG.replace("https://client.", "https://user:canary1@client.")
    text = text.replace(ISSUER, f"{ISSUER.replace('://', '://canary2@')}?canary3")
    more = f"""
[[senders]]
name = "other"
issuer = "https://other.example.com"
jwks_url = "http://127.0.0.1:{unused_tcp_port}/jwks.json?key=canary4"
audience = ["https://user:canary5@client.example.com/a2a?key=canary6"]

[[forwards]]
command = ["sh", "https://user:canary7@host/x", "-u"]
"""
    config.write_text('allow = ["127.0.0.1:*"]\n' + text + more)
    ran = receiver_command("check", "--settings")
    assert (ran.status, "other: error: no keys from" in ran.err) == (1, True)
    assert "canary" not in ran.out + ran.err
    document = settings_in(ran)
    assert document["url"] == "https://***@client.example.com"
    assert document["senders"][1]["audience"] == ["https://***@client.example.com/a2a?***"]
    refused = config.read_text().replace("http://127", "http://user:canary8@127")
    config.write_text(refused)
    ran = receiver_command("check")
    assert ran.status == 1
    assert "canary" not in ran.out + ran.err


def test_check_masks_what_a_forward_is_reached_with(receiver_command: Run, config: Path) -> None:
    forwards = """
[[forwards]]
to = "http://10.0.0.7:8080/hook?key=secret-1"

[[forwards]]
to = "redis://user:secret-2@10.0.0.8/0?stream=updates"
tasks = ["task-1"]

[[forwards]]
command = ["cat"]
senders = ["agent"]
"""
    config.write_text(CONFIG + forwards)
    ran = receiver_command("check", "--settings")
    assert (ran.status, ran.err) == (0, "")
    document = settings_in(ran)
    assert [forward["to"] for forward in document["forwards"]] == [
        "http://10.0.0.7:8080/hook?***",
        "redis://***@10.0.0.8/0?stream=updates",
        None,
    ]
    assert "secret-" not in ran.out


def test_expect_mints_credentials(receiver_command: Run, config: Path) -> None:
    assert config.exists()
    document = json.loads(receiver_command("expect", "--authentication", "Bearer").out)
    assert document["authentication"]["scheme"] == "Bearer"
    assert len(document["authentication"]["credentials"]) == 43


def test_expect_replaces_a_token_that_a_file_names(receiver_command: Run, config: Path) -> None:
    minted = json.loads(receiver_command("expect", "--task-id", "task-1").out)
    old = config.with_name("old.txt")
    old.write_text(minted["token"] + "\n")
    ran = receiver_command("expect", "--replaces", str(old), "--overlap", "0")
    replaced = json.loads(ran.out)
    assert replaced["taskId"] == "task-1"
    assert replaced["token"] != minted["token"]
    assert "no valid token of sender" in receiver_command("expect", "--replaces", str(old)).error


def test_expect_says_that_a_file_is_no_text(receiver_command: Run, config: Path) -> None:
    old = config.with_name("old.txt")
    old.write_bytes(b"\xff")
    ran = receiver_command("expect", "--replaces", str(old))
    assert ran.error == "replaces: expected a file with a token, found one that is no text"


UNSIGNED = """\
url = "https://client.example.com"

[[senders]]
name = "sdk"
profile = "unsigned-secret-only"
path = "/sdk"
id_field = "/statusUpdate/metadata/eventId"
rate = 10
max_body_bytes = 65536
"""


def test_check_says_who_does_not_sign(receiver_command: Run, config: Path) -> None:
    config.write_text(UNSIGNED)
    ran = receiver_command("check")
    assert ran.status == 0
    assert "sdk: unsigned-secret-only: only its secret is verified" in ran.out

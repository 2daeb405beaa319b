"""The receiver is built with the values of the file, and with the code's defaults for the rest."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.errors import ConfigError
from receiver import Limits, RateLimit, Receiver, TrustedSender
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT
from receiver.inbox.retention import InboxRetention
from receiver.limits import ConnectionLimits
from receiver.runtime import DRAIN
from receiver.settings import ReceiverSettings, load_settings
from receiver.settings.tables import SenderSettings

PAGES = Path(__file__).parents[3] / "docs"
SHORTEST = """\
url = "https://client.example.com"

[[senders]]
name = "agent"
issuer = "https://agent.example.com"
jwks_url = "https://agent.example.com/jwks.json"
"""

SENDER = SHORTEST.partition("\n\n")[2]


def build(folder: Path, text: str) -> Receiver:
    """Write the file, read it as `receiver serve` does, and build what it describes."""
    path = folder / "receiver.toml"
    path.write_text(text)
    return load_settings(path).build()


def seconds_for(receiver: Receiver, name: str) -> float | None:
    """Return how long a call of this callback may take."""
    return receiver.dispatcher.caller._limit(receiver.callbacks._callbacks[name])


# --- what the file says ---------------------------------------------------------------------------


def test_a_callback_has_the_time_out_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["patient", "quick", "endless"]
    handlers = "".join(f"def {name}(notification): ...\n" for name in names)
    (tmp_path / "timed_handlers.py").write_text(handlers)
    monkeypatch.syspath_prepend(tmp_path)
    tables = "".join(
        f'[[callbacks]]\ncall = "timed_handlers:{name}"\n{more}\n'
        for name, more in zip(
            names, ["", "timeout_seconds = 1", 'timeout_seconds = "none"'], strict=True
        )
    )
    receiver = build(tmp_path, f"callback_timeout_seconds = 7\n{SHORTEST}\n{tables}")

    found = {name: seconds_for(receiver, f"timed_handlers:{name}") for name in names}
    assert found == {"patient": 7.0, "quick": 1.0, "endless": None}


def test_keys_are_used_after_they_expired_for_as_long_as_the_file_says(tmp_path: Path) -> None:
    build(tmp_path, f"{SHORTEST}stale_for_seconds = 0\n")
    [sender] = load_settings(tmp_path / "receiver.toml").trusted_senders()
    assert sender.stale_for == timedelta(0)

    receiver = build(tmp_path, f"{SHORTEST}stale_for_seconds = 60\n")
    assert receiver.senders["agent"].stale_for == timedelta(minutes=1)


def test_the_inbox_holds_as_much_as_the_file_says(tmp_path: Path) -> None:
    text = f"max_backlog = 3\nmax_backlog_per_sender = 2\n{SHORTEST}"
    limits = build(tmp_path, text).handler.limits
    assert (limits.max_backlog, limits.max_backlog_per_sender) == (3, 2)


# --- mistakes in it -------------------------------------------------------------------------------


def above(line: str) -> str:
    """Return a file with a setting of the top level, in its third line."""
    return SHORTEST.replace("\n\n", f"\n\n{line}\n", 1)


def below(*lines: str) -> str:
    """Return a file with lines at its end: the seventh is the last one of the sender."""
    return SHORTEST + "\n".join(lines) + "\n"


def instead(old: str, new: str) -> str:
    """Return a file with another text in it."""
    assert old in SHORTEST
    return SHORTEST.replace(old, new, 1)


CALLBACK = ("", "[[callbacks]]", 'call = "json:loads"')
FORWARD = ("", "[[forwards]]", 'to = "https://in.example"')
UNSIGNED = ("[[senders]]", 'name = "sdk"', 'profile = "unsigned-secret-only"', 'path = "/sdk"')
DAYS = "a whole number from 1 to 36500, or 'forever'"
A_URL = "expected an absolute http or https URL, without user name or fragment"
MISTAKES = {
    # types and bounds
    "3: allow: expected a list, found a string": above('allow = "127.0.0.1:*"'),
    "3: allow: expected a list, found a table": above("allow = {a = 1}"),
    "3: listen: expected a string, found a whole number": above("listen = 9000"),
    "3: max_body_bytes: expected a whole number, found 1.5": above("max_body_bytes = 1.5"),
    "3: max_body_bytes: expected a whole number, found text": above('max_body_bytes = "1 MiB"'),
    "3: max_body_bytes: expected at least 1, found 0": above("max_body_bytes = 0"),
    "3: drain_seconds: expected a whole number, found true or false": above(
        "drain_seconds = false"
    ),
    "3: drain_seconds: expected at least 0, found -1": above("drain_seconds = -1"),
    "3: drain_seconds: expected at most": above("drain_seconds = 1000000000000000000"),
    "3: keep_alive_seconds: expected at most": above("keep_alive_seconds = 1000000000000000000"),
    "3: callback_timeout_seconds: expected a whole number from 1 on, or 'none'": above(
        'callback_timeout_seconds = "never"'
    ),
    "3: validation_echo: expected true or false, found text": above('validation_echo = "perhaps"'),
    "3: log_format: expected 'text' or 'json'": above('log_format = "xml"'),
    "3: database: expected at least one character": above('database = ""'),
    "3: ca_file: expected the path of a file": above('ca_file = ""'),
    "3: tls.certificate: expected the path of a file": above(
        'tls = {certificate = "\\u0000", key = "k"}'
    ),
    "3: dashboard.audit_log: expected the path of a file": above('dashboard = {audit_log = ""}'),
    "3: dashboard.hosts[0]: expected at least one character": above('dashboard = {hosts = [""]}'),
    "3: tls: expected a table, found a string": above('tls = "cert.pem"'),
    "3: tls.key: expected, but missing": above('tls = {certificate = "c"}'),
    "3: callbacks: expected a list, found a table: write [[callbacks]]": above(
        'callbacks = {call = "a:b"}'
    ),
    "3: trusted_proxies[0]: expected an address or a network, like 10.0.0.0/8": above(
        'trusted_proxies = ["10.0.0.1/8"]'
    ),
    f"9: retention.done_days: expected {DAYS}": below("", "[retention]", "done_days = 100000"),
    f"9: retention.dead_days: expected {DAYS}": below("", "[retention]", 'dead_days = "never"'),
    "9: retention.remember_hours: expected at most 876000": below(
        "", "[retention]", "remember_hours = 2000000"
    ),
    # unknown settings
    **{
        f"3: {name}: there is no such setting": above(f"{name} = 1")
        for name in ("ulr", "_env_prefix", "_env_file", "_cli_parse_args", "__pydantic_self__")
    },
    "3: alerts.lgo: there is no such setting; did you mean 'log'?": above("alerts = {lgo = true}"),
    "3: tls.cert: there is no such setting": above(
        'tls = {certificate = "c", key = "k", cert = "c"}'
    ),
    "8: forward: there is no such setting; did you mean 'forwards'?": below(
        "", "[[forward]]", 'to = "https://in.example"'
    ),
    "10: senders[0].token: there is no such setting; did you mean 'tokens'?": below(
        *CALLBACK, "[[senders.token]]", "value = 1"
    ),
    "9: retention.max: there is no such setting": below("", "[retention]", "max . done_days = 1"),
    "5: senders[0].isuer: there is no such setting": instead("issuer", "isuer"),
    "7: senders[0].listen: there is no such setting here: it belongs above the first": below(
        'listen = "127.0.0.1:9001"'
    ),
    # senders
    "1: url: expected an absolute http or https URL": instead("https://client", "client"),
    "6: senders[0].jwks_url: ": instead("https://agent.example.com/jwks", "https://10.0.0.1/jwks"),
    "2: allow: 'https://a': expected host:port": instead("\n\n", '\nallow = ["https://a"]\n'),
    "7: senders[0].tasks: expected": below('tasks = "all"'),
    "7: senders[0].schemes[0]: expected": below('schemes = ["x"]'),
    "3: senders[0].webhook_secrets: expected with scheme": below(
        'schemes = ["jwt", "standard-webhooks"]'
    ),
    "7: senders[0].tolerance_seconds: expected a whole number, found true or false": below(
        "tolerance_seconds = true"
    ),
    "3: senders[0].issuer: found none": instead('issuer = "https://agent.example.com"\n', ""),
    "3: senders[0]: expected exactly one of jwks_url and jwks_file": instead(
        'jwks_url = "https://agent.example.com/jwks.json"\n', ""
    ),
    "7: senders[0].path: expected": below('path = "push"'),
    "7: senders[0].audience[0]: expected an absolute http or https URL": below('audience = ["x"]'),
    "7: senders[1]: unsigned-": below(*UNSIGNED, 'jwks_file = "jwks.json"'),
    "11: senders[1].id_field: expected": below(*UNSIGNED, 'id_field = "a b"'),
    "11: senders[1].rate: expected at least 1, found 0": below(*UNSIGNED, "rate = 0"),
    "11: senders[1].max_body_bytes: expected at least 1, found 0": below(
        *UNSIGNED, "max_body_bytes = 0"
    ),
    "11: senders[1].id_feld: there is no such setting; did you mean 'id_field'?": below(
        *UNSIGNED, 'id_feld = "/a"'
    ),
    # where notifications go
    "9: callbacks[0].call: nowhere:done: ModuleNotFoundError: No module named 'nowhere'": below(
        "", "[[callbacks]]", 'call = "nowhere:done"'
    ),
    "9: callbacks[0].call: json:none: AttributeError": below(
        "", "[[callbacks]]", 'call = "json:none"'
    ),
    "9: callbacks[0].call: json:__name__: found a str, expected a function": below(
        "", "[[callbacks]]", 'call = "json:__name__"'
    ),
    "9: callbacks[0].call: expected module:function": below("", "[[callbacks]]", 'call = "json"'),
    "10: callbacks[0].states[0]: ": below(*CALLBACK, 'states = ["done"]'),
    "10: callbacks[0].tasks[0]: expected at least one character": below(*CALLBACK, 'tasks = [""]'),
    "10: callbacks[0].senders: found 'agnet', expected one of agent": below(
        *CALLBACK, 'senders = ["agnet"]'
    ),
    "12: callbacks[1].call: callback json:loads is registered twice: give each its own": below(
        *CALLBACK, *CALLBACK
    ),
    "10: forwards[0].senders: found 'agnet', expected one of agent": below(
        *FORWARD, 'senders = ["agnet"]'
    ),
    "10: forwards[0].name: expected at least one character": below(*FORWARD, 'name = ""'),
    "8: forwards[0]: expected exactly one of": below(*FORWARD, 'command = ["cat"]'),
    **{
        f"9: forwards[0].to: {says}": below("", "[[forwards]]", f'to = "{to}"')
        for to, says in {
            "https://in side/": f"found 'https://in side/', {A_URL}",
            "ftp://x/": f"found 'ftp://x/', {A_URL}",
            "redis://:secret@127.0.0.1": "expected redis://host:port/db?stream=name[&maxlen=number]",
        }.items()
    },
    "9: forwards[0].command: ./nowhere: no such program": below(
        "", "[[forwards]]", 'command = ["./nowhere"]'
    ),
    # listeners
    "3: ops_listen: found 127.0.0.1:9000, which listen has: choose another port": above(
        'ops_listen = "127.0.0.1:9000"'
    ),
    "3: dashboard.listen: found [::1]:9001, which ops_listen has: choose another port": above(
        'dashboard = {listen = "[::1]:9001"}\nops_listen = "[::1]:9001"'
    ),
}


@pytest.mark.parametrize("says", MISTAKES)
def test_a_mistake_has_its_line_and_what_was_expected_in_words_of_the_file(
    tmp_path: Path, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, MISTAKES[says])
    [mistake] = str(refused.value).splitlines()
    assert mistake.startswith(f"{tmp_path / 'receiver.toml'}:{says}")
    assert "secret@" not in mistake


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(above(f"trusted_proxies = {'[' * 9000}"), "not TOML", id="deep"),
        pytest.param(above(f"max_done = 1{'0' * 5000}"), "not TOML", id="many digits"),
        pytest.param(above("database = inbox.db"), "not TOML: .*at line 3", id="no quotes"),
        pytest.param(f"{SHORTEST}{SENDER}", "two senders are called 'agent'", id="names"),
        pytest.param(
            below(*UNSIGNED, *UNSIGNED).replace("sdk", "b", 1),
            "expected a path of its own",
            id="paths",
        ),
        pytest.param(below('tokens_file = "none.txt"'), "none.txt: No such", id="no tokens"),
        pytest.param(below('card = "none.json"'), "none.json: No such", id="no card"),
        *(
            pytest.param(
                below('schemes = ["jwt", "standard-webhooks"]', f'webhook_secrets_file = "{name}"'),
                says,
                id=f"secrets of {name}",
            )
            for name, says in {
                "none.txt": "none.txt: No such file",
                "empty.txt": "webhook_secrets: expected with scheme",
                "short.txt": "3 bytes",
            }.items()
        ),
    ],
)
def test_what_is_wrong_with_the_whole_file_or_another_one_is_said(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("whsec_AAAA")
    with pytest.raises(ConfigError, match=says):
        build(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LISTEN", "9000", "expected host:port"),
        ("LISTEN", "[::1]:99999", "expected host:port"),
        ("URL", "client", "expected an absolute"),
        ("SENDERS", "{", "expected JSON"),
        ("SENDERS", '[{"name": "a"}]', "senders[0]: expected exactly one of jwks_url and"),
        ("SENDERS", '[{"nam": "a"}]', "senders[0].name: expected, but missing"),
        ("TLS", '{"key": "key.pem"}', "tls.certificate: expected, but missing"),
        ("ALLOW", '["client"]', "'client': expected host:port"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"RECEIVER_{variable}", value)
    with pytest.raises(ConfigError, match=f"^RECEIVER_{variable}: {re.escape(says)}"):
        build(tmp_path, SHORTEST)


def test_a_module_that_ends_the_program_is_a_mistake_in_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_handlers.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"9: callbacks\[0\]\.call: .*: SystemExit: 3$"):
        build(tmp_path, below("", "[[callbacks]]", 'call = "ending_handlers:done"'))


def test_several_listeners_may_each_take_any_free_port(tmp_path: Path) -> None:
    path, zero = tmp_path / "receiver.toml", "127.0.0.1:0"
    path.write_text(f'listen = "{zero}"\nops_listen = "{zero}"\n{SHORTEST}')
    settings = load_settings(path)
    assert (settings.listen, settings.ops_listen) == (zero, zero)


def test_a_byte_order_mark_belongs_to_no_setting(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("a-token-of-16-or-more\n", "utf-8-sig")
    path = tmp_path / "receiver.toml"
    path.write_text(f'{SHORTEST}tokens_file = "tokens.txt"\n', "utf-8-sig")
    [sender] = load_settings(path).trusted_senders()
    assert sender.tokens == ["a-token-of-16-or-more"]


# --- what it leaves out ---------------------------------------------------------------------------


def test_the_defaults_of_the_file_are_those_of_the_code(tmp_path: Path) -> None:
    receiver = build(tmp_path, SHORTEST)
    settings = load_settings(tmp_path / "receiver.toml")
    own = Receiver(
        url=settings.url,
        senders=settings.trusted_senders(),
        database=tmp_path / "inbox.db",
    )

    assert receiver.handler.limits == own.handler.limits == Limits()
    for each in (receiver, own):
        assert each.dispatcher.caller._timeout == CALLBACK_TIMEOUT
        assert each._drain == DRAIN
        assert each.dispatcher.usage() == (0, 64)
    assert settings.connection_limits == ConnectionLimits()
    assert settings.retention.made(InboxRetention) == InboxRetention()


def test_the_defaults_of_a_senders_table_are_those_of_the_code(tmp_path: Path) -> None:
    receiver = build(tmp_path, SHORTEST)
    url = "https://agent.example.com/jwks.json"
    own = TrustedSender(name="agent", issuer="https://agent.example.com", jwks_url=url)

    for each in dataclasses.fields(TrustedSender):
        found, expected = (getattr(of, each.name) for of in (receiver.senders["agent"], own))
        if isinstance(expected, tuple):
            found = tuple(found)
        assert found == expected, each.name


# --- what the pages say ---------------------------------------------------------------------------


def rows(page: str) -> dict[str, list[str]]:
    """Return the other cells of each row of a page's tables, by the first."""
    lines = (PAGES / page).read_text("utf-8").splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return {first.strip(): [cell.strip() for cell in others] for first, *others in cells}


def test_the_defaults_are_those_that_the_page_of_the_service_states() -> None:
    stated: dict[str, int] = {}
    for names, others in rows("receiver.md").items():
        named, defaults = re.findall(r"`(\w+)`", names), others[0].split(", ")
        if all(default.isdecimal() for default in defaults):
            stated |= zip(named, map(int, defaults), strict=True)

    left_out = ReceiverSettings.defaults()
    assert stated == {name: left_out[name] for name in stated}
    assert stated["callback_timeout_seconds"] == CALLBACK_TIMEOUT.total_seconds()
    assert stated["drain_seconds"] == DRAIN.total_seconds()
    limits = Limits()
    assert stated["max_backlog"] == limits.max_backlog
    assert stated["max_backlog_per_sender"] == limits.max_backlog_per_sender
    for name, rate in (("peer_rate", limits.peer_rate), ("sender_rate", limits.sender_rate)):
        assert rate == RateLimit(per_second=stated[name], burst=2 * stated[name])


@pytest.mark.parametrize(
    ("setting", "attribute"),
    [("stale_for_seconds", "stale_for"), ("tolerance_seconds", "tolerance")],
)
def test_the_defaults_are_those_that_the_page_of_senders_states(
    setting: str, attribute: str
) -> None:
    stated = re.search(r"; default (\d+)(\.|$)", rows("receiver-trust.md")[f"`{setting}`"][0])
    assert stated is not None
    assert SenderSettings.defaults()[setting] == int(stated[1])
    [field] = [each for each in dataclasses.fields(TrustedSender) if each.name == attribute]
    assert field.default == timedelta(seconds=int(stated[1]))

"""The receiver is built with the values of the file, and with the code's defaults for the rest."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from receiver import Limits, RateLimit, Receiver, TrustedSender
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT
from receiver.inbox.retention import InboxRetention
from receiver.limits import ConnectionLimits
from receiver.runtime import DRAIN
from receiver.settings import ReceiverSettings, SenderSettings, load_settings

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import Draft, World

PAGES = Path(__file__).parents[3] / "docs"
OTHERS_KEY = generate_key(Algorithm.ES256)
SHORTEST = """\
url = "https://client.example.com"

[[senders]]
name = "agent"
issuer = "https://agent.example.com"
jwks_url = "https://agent.example.com/jwks.json"
"""


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


async def test_the_inbox_holds_as_much_as_the_file_says(tmp_path: Path, world: World) -> None:
    world.clock.now = utc_now()  # a receiver built from a file has no other clock
    text = 'url = "https://client.example.com"\nmax_backlog = 3\nmax_backlog_per_sender = 2\n'
    for name, key in (("agent", world.draft().key), ("other", OTHERS_KEY)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"keys": [public_jwk(key)]}))
        text += f"""
[[senders]]
name = "{name}"
issuer = "https://{name}.example.com"
jwks_file = "{name}.json"
token_required = false
tasks = "any"
"""
    receiver = build(tmp_path, text)

    def of_agent(number: int) -> Draft:
        draft = world.draft(number)
        draft.replace_header("X-A2A-Token")
        draft.replace_header("X-A2A-Notification-Token")
        return draft

    def of_other(number: int) -> Draft:
        draft = of_agent(number)
        draft.key = OTHERS_KEY
        draft.claim(iss="https://other.example.com")
        return draft

    drafts = [of_agent(1), of_agent(2), of_agent(3), of_other(1), of_other(2)]
    await receiver.open()  # without callbacks: all notifications stay unfinished
    try:
        verdicts = [await receiver.receive(draft.request()) for draft in drafts]
    finally:
        await receiver.close()

    found = [(verdict.status, verdict.code) for verdict in verdicts]
    assert found[:3] == [(202, "accepted"), (202, "accepted"), (429, "backlog_full")]
    assert found[3:] == [(202, "accepted"), (503, "inbox_full")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("keep_alive_seconds = 1000000000000000000", "3: keep_alive_s", id="seconds"),
        pytest.param("drain_seconds = 1000000000000000000", "3: drain_seconds", id="none-or-more"),
        pytest.param("retention = {done_days = 100000}", "3: retention.done_days", id="days"),
        pytest.param("retention = {remember_hours = 2000000}", "most 876000", id="hours"),
        pytest.param('tls = {certificate = "\\u0000", key = "x"}', "tls.certificate", id="nul"),
        pytest.param(f"trusted_proxies = {'[' * 9000}", "not TOML", id="deep"),
        pytest.param(f"max_done = 1{'0' * 5000}", "not TOML", id="many-digits"),
    ],
)
def test_a_value_that_no_receiver_can_be_built_with_is_refused_with_its_place(
    tmp_path: Path, line: str, says: str
) -> None:
    text = SHORTEST.replace("\n\n", f"\n\n{line}\n", 1)
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('allow = "127.0.0.1:*"', "3: allow: expected a list, found a string"),
        ("listen = 9000", "3: listen: expected a string, found a whole number"),
        ("max_body_bytes = 1.5", "3: max_body_bytes: expected a whole number, found 1.5"),
        ('max_body_bytes = "1 MiB"', "3: max_body_bytes: expected a whole number, found text"),
        (
            "max_body_bytes = true",
            "3: max_body_bytes: expected a whole number, found true or false",
        ),
        ("drain_seconds = false", "3: drain_seconds: expected a whole number, found true or false"),
        (
            "callback_timeout_seconds = true",
            "3: callback_timeout_seconds: expected a whole number from 1 on, or 'none'",
        ),
        ("max_body_bytes = 0", "3: max_body_bytes: expected at least 1, found 0"),
        ("drain_seconds = -1", "3: drain_seconds: expected at least 0, found -1"),
        ('validation_echo = "perhaps"', "3: validation_echo: expected true or false, found text"),
        ('log_format = "xml"', "3: log_format: expected 'text' or 'json'"),
        ('database = ""', "3: database: expected at least one character"),
        ('ca_file = ""', "3: ca_file: expected the path of a file"),
        ('tls = {certificate = "", key = "k"}', "3: tls.certificate: expected the path of a file"),
        ('dashboard = {audit_log = ""}', "dashboard.audit_log: expected the path of a file"),
        ('dashboard = {hosts = [""]}', "dashboard.hosts[0]: expected at least one character"),
        ('tls = "cert.pem"', "3: tls: expected a table, found a string"),
        ('tls = {certificate = "c"}', "3: tls.key: expected, but missing"),
        ("alerts = {lgo = true}", "3: alerts.lgo: there is no such setting; did you mean 'log'?"),
        ('tls = {certificate = "c", key = "k", cert = "c"}', "tls.cert: there is no such setting"),
        (
            'callback_timeout_seconds = "never"',
            "3: callback_timeout_seconds: expected a whole number from 1 on, or 'none'",
        ),
        ('callbacks = {call = "a:b"}', "found a table: write [[callbacks]]"),
        ("allow = {a = 1}", "3: allow: expected a list, found a table"),
    ],
)
def test_a_mistake_says_what_was_found_and_what_was_expected_in_words_of_the_file(
    tmp_path: Path, setting: str, says: str
) -> None:
    text = SHORTEST.replace("\n\n", f"\n\n{setting}\n", 1)
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, text)
    [mistake] = str(refused.value).splitlines()
    assert mistake.endswith(says)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        pytest.param(
            '[[callbacks]]\ncall = "nowhere:done"',
            "9: callbacks[0].call: nowhere:done: ModuleNotFoundError: No module named 'nowhere'",
            id="callback",
        ),
        pytest.param(
            '[[forwards]]\nto = "https://in side/"',
            "9: forwards[0].to: found 'https://in side/', expected an absolute http or https URL,"
            " without user name or fragment",
            id="url",
        ),
        pytest.param(
            '[[forwards]]\nto = "redis://:secret@127.0.0.1"',
            "9: forwards[0].to: expected redis://host:port/db?stream=name[&maxlen=number]",
            id="stream",
        ),
        pytest.param(
            '[[forwards]]\nto = "https://in.example"\nname = ""',
            "10: forwards[0].name: expected at least one character",
            id="no name",
        ),
        pytest.param(
            '[[callbacks]]\ncall = "json:loads"\ntasks = [""]',
            "10: callbacks[0].tasks[0]: expected at least one character",
            id="no task",
        ),
        pytest.param(
            '[[forward]]\nto = "https://in.example"',
            "8: forward: there is no such setting; did you mean 'forwards'?",
            id="unknown list of tables",
        ),
        pytest.param(
            "[[callbacks]]\ncall = 'json:loads'\n[[senders.token]]\nvalue = 1",
            "10: senders[0].token: there is no such setting; did you mean 'tokens'?",
            id="unknown table of a table",
        ),
        pytest.param(
            "[retention]\nmax . done_days = 1",
            "9: retention.max: there is no such setting",
            id="dotted key",
        ),
        pytest.param(
            '[[forwards]]\ncommand = ["./nowhere"]',
            "9: forwards[0].command: ./nowhere: no such program",
            id="command",
        ),
        pytest.param(
            '[[callbacks]]\ncall = "json:loads"\n\n[[callbacks]]\ncall = "json:loads"',
            "12: callbacks[1].call: callback json:loads is registered twice: give each its own"
            " name=",
            id="twice",
        ),
    ],
)
def test_a_mistake_found_while_the_receiver_is_built_has_its_line(
    tmp_path: Path, table: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, f"{SHORTEST}\n{table}\n")
    assert str(refused.value) == f"{tmp_path / 'receiver.toml'}:{says}"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("https://agent.example.com/jwks", "http://agent.example.com/jwks", "6: senders[0].jwks_"),
        ("https://agent.example.com/jwks", "https://10.0.0.1/jwks", "6: senders[0].jwks_url: "),
        ("\n\n", '\nallow = ["https://a"]\n', "2: allow: 'https://a': expected host:port"),
    ],
)
def test_a_url_that_keys_cannot_be_fetched_from_has_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, SHORTEST.replace(old, new, 1))
    assert str(refused.value).startswith(f"{tmp_path / 'receiver.toml'}:{says}")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param(
            ['ops_listen = "127.0.0.1:9000"'],
            "3: ops_listen: found 127.0.0.1:9000, which listen has: choose another port",
            id="default",
        ),
        pytest.param(
            ['dashboard = {listen = "[::1]:9001"}', 'ops_listen = "[::1]:9001"'],
            "3: dashboard.listen: found [::1]:9001, which ops_listen has: choose another port",
            id="dashboard",
        ),
    ],
)
def test_two_listeners_of_one_address_are_refused(
    tmp_path: Path, settings: list[str], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build(tmp_path, SHORTEST.replace("\n\n", "\n\n" + "\n".join(settings) + "\n", 1))
    assert str(refused.value) == f"{tmp_path / 'receiver.toml'}:{says}"


def test_several_listeners_may_each_take_any_free_port(tmp_path: Path) -> None:
    path, zero = tmp_path / "receiver.toml", "127.0.0.1:0"
    path.write_text(f'listen = "{zero}"\nops_listen = "{zero}"\n{SHORTEST}')
    settings = load_settings(path)
    assert (settings.listen, settings.ops_listen) == (zero, zero)


def test_a_top_level_setting_below_a_table_is_refused_with_where_it_belongs(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"senders\[0\]\.listen: .* above the first \[table\]"):
        build(tmp_path, f'{SHORTEST}listen = "127.0.0.1:9001"\n')


def test_a_byte_order_mark_belongs_to_no_setting(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("a-token-of-16-or-more\n", "utf-8-sig")
    path = tmp_path / "receiver.toml"
    path.write_text(f'{SHORTEST}tokens_file = "tokens.txt"\n', "utf-8-sig")
    [sender] = load_settings(path).trusted_senders()
    assert sender.tokens == ["a-token-of-16-or-more"]


@pytest.mark.parametrize("setting", ["stale_for_seconds", "tolerance_seconds"])
def test_true_is_no_number_of_seconds(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: expected a whole number, found true"):
        build(tmp_path, f"{SHORTEST}{setting} = true\n")


def test_two_senders_of_one_name_are_refused(tmp_path: Path) -> None:
    table = SHORTEST.partition("\n\n")[2]
    with pytest.raises(ConfigError, match="two senders are called 'agent'"):
        build(tmp_path, f"{SHORTEST}\n{table}")


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
        assert each._runtime.drain == DRAIN
        assert each.dispatcher.usage() == (0, 64)
    assert settings.connection_limits == ConnectionLimits()
    assert settings.retention.build() == InboxRetention()


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

"""The rules of the house: imports go down only, and each dependency has one door."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A row may import the rows under it; the rooms of one row are strangers.
SENDER_ROWS = [
    {"__init__", "cli", "integrations"},
    {"dashboard"},
    {"delivery"},
    {"outbox", "subscriptions"},
    {"secrets"},
    {"cards"},
    {"net"},
    {"schemas", "signing"},
    {"alerts", "telemetry", "webui"},
    {"a2a", "captured", "keys", "storage", "terminal", "work"},
    {
        "bounded_json",
        "caching",
        "clock",
        "lazy",
        "programs",
        "traceparent",
        "url",
        "webhook",
    },
    {"events"},
    {"logs"},
    {"errors", "progress", "record", "version"},
]
RECEIVER_ROWS = [
    {"__init__", "cli", "integrations"},
    {"check_command", "doctor", "listening"},
    {"public_url"},
    {"dashboard_command", "expect_command", "inbox_commands", "pin_command"}
    | {"scheme_options", "serving", "testing"},
    {"inbox_options", "reload"},
    {"settings"},
    {"receiver"},
    {"life"},
    {"dashboard"},
    {"admin", "alert_webhook", "app", "asgi", "callbacks", "expecting", "forwards"},
    {"connections", "edge"},
    {"intake"},
    {"accepting", "refusals"},
    {"expected", "inbox"},
    {"replay", "verification"},
    {"credentials", "trusted_keys"},
    {"selection"},
    {"trust"},
    {"limits", "peers", "pinning"},
]
# What the receiver may use of pushkit.
KERNEL = set().union(*SENDER_ROWS[5:])

# Swapping a library touches one room.
DOORS = {
    "a2a": {"pushkit.integrations", "receiver.integrations"},
    "aiodns": set(),  # through aiohttp alone
    "aiohappyeyeballs": {"pushkit.net"},
    "aiohttp": {
        "pushkit.integrations",
        "pushkit.net",
        "pushkit.telemetry",
        "receiver.app",
        "receiver.receiver",
    }
    | {"pushkit.dashboard", "pushkit.webui", "receiver.serving", "receiver.testing"},
    "click": {"pushkit.cli", "pushkit.terminal", "receiver.cli"}
    | {
        "receiver.check_command",
        "receiver.dashboard_command",
        "receiver.expect_command",
        "receiver.inbox_commands",
        "receiver.inbox_options",
        "receiver.pin_command",
    }
    | {"receiver.serving"}
    | {"receiver.doctor", "receiver.listening", "receiver.scheme_options"},
    "cryptography": {"pushkit.keys", "pushkit.secrets"},
    "http_sf": {"pushkit.signing"},
    "jinja2": {"pushkit.webui"},
    "jsonschema": {"pushkit.schemas"},
    "jwcrypto": {"pushkit.keys"},
    "jwt": {"pushkit.cli"},  # the second opinion of `pushkit verify`
    "re2": {"pushkit.schemas"},
    "referencing": {"pushkit.schemas"},
    "opentelemetry": {"pushkit.telemetry"},
    "prometheus_client": {"pushkit.telemetry"},
    "orjson": {"pushkit.bounded_json"},
    "pydantic_core": {"pushkit.bounded_json", "pushkit.cli"},
    "pydantic": {"pushkit.cli", "receiver.settings"},
    "pydantic_settings": {"receiver.settings"},
    "redis": {"receiver.forwards", "receiver.replay"},
    "rfc8785": {"pushkit.cards"},
    "sqlite3": {"pushkit.storage"},
    "tenacity": {"pushkit.work"},
}

PACKAGES = ("pushkit", "receiver")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def imports_of(path: Path) -> set[str]:
    """Return the full names that a module imports, those for type checking alone left out."""
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


def room_of(path: Path) -> tuple[str, str]:
    """Return the package and the room of a module."""
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    return package, rest[0]


def row_of(rows: list[set[str]], room: str) -> int:
    for number, row in enumerate(rows):
        if room in row:
            return number
    raise AssertionError(f"{room} stands in no row: give it one")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    package, room = room_of(path)
    rows = SENDER_ROWS if package == "pushkit" else RECEIVER_ROWS
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0] or "__init__"
        if top == package and other != room:
            assert row_of(rows, other) > row_of(rows, room), f"{path}: imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_two_packages_meet_in_the_kernel_only(path: Path) -> None:
    package, _ = room_of(path)
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if package == "pushkit":
            assert top != "receiver", f"{path}: imports {name}"
        elif top == "pushkit":
            assert rest.partition(".")[0] in KERNEL, f"{path}: imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_dependency_has_one_door(path: Path) -> None:
    package, room = room_of(path)
    for name in imports_of(path):
        doors = DOORS.get(name.partition(".")[0])
        assert doors is None or f"{package}.{room}" in doors, f"{path}: imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_name_with_an_underscore_stays_in_its_module(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
            private = [name.name for name in node.names if re.match("_[^_]", name.name)]
            assert not private, f"{path}: imports {', '.join(private)} of {node.module}"

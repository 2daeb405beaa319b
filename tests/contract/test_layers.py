"""The rules of the house: imports go down only, each dependency has one door, a name one class."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# A row may import the rows under it; the rooms of one row are strangers.
SENDER_ROWS = [
    {"__init__", "cli"},
    {"gateway"},
    {"integrations"},
    {"dashboard"},
    {"delivery"},
    {"outbox"},
    {"subscriptions"},
    {"secrets"},
    {"cards"},
    {"net"},
    {"lifetime", "schemas", "signing"},
    {"alerts", "telemetry", "webui"},
    {"queue", "terminal"},
    {"a2a", "captured", "keys", "peers", "storage", "scheduling"},
    {"files"},
    {"bounded_json", "lazy", "programs", "threads", "url", "webhook"},
    {"events"},
    {"logs", "options"},
    {"errors", "progress"},
    {"clock"},
    {"record", "version"},
]
RECEIVER_ROWS = [
    {"__init__", "cli", "integrations"},
    {"check_command", "listening", "testing"},
    {"diagnosis"},
    {"agent_commands", "inbox_commands", "serve_command"},
    {"middleware", "options"},
    {"settings"},
    {"receiver"},
    {"expectation"},
    {"runtime"},
    {"dashboard"},
    {"admin", "alert_webhook", "app", "asgi", "forwards", "recovery"},
    {"request_handler"},
    {"mailbox"},
    {"accepting", "verification"},
    {"callbacks", "service_state"},
    {"refusals"},
    {"inbox", "notification", "registrations"},
    {"tokens"},
    {"serving", "signatures"},
    {"request", "trust"},
    {"selection"},
    {"senders"},
    {"limits", "pinning", "steps"},
]
# What the receiver may use of pushkit.
KERNEL = set().union(*SENDER_ROWS[SENDER_ROWS.index({"cards"}) :])

# Swapping a library touches one room.
DOORS = {
    "a2a": {"pushkit.integrations", "receiver.integrations"},
    "aiodns": {"pushkit.net"},
    "aiohappyeyeballs": {"pushkit.net"},
    "aiohttp": {
        "pushkit.gateway",
        "pushkit.integrations",
        "pushkit.telemetry",
        "receiver.app",
        "receiver.mailbox",
        "receiver.receiver",
    }
    | {"pushkit.dashboard", "pushkit.webui", "receiver.serving"},
    "click": {"pushkit.cli", "pushkit.terminal", "receiver.cli"}
    | {
        "receiver.check_command",
        "receiver.agent_commands",
        "receiver.inbox_commands",
    }
    | {"receiver.serve_command"}
    | {"receiver.diagnosis", "receiver.listening", "receiver.options"},
    "cryptography": {"pushkit.keys", "pushkit.secrets"},
    "http_sf": {"pushkit.signing"},
    "jinja2": {"pushkit.webui"},
    "jsonschema": {"pushkit.schemas"},
    "jwcrypto": {"pushkit.keys"},
    # The second opinion of `pushkit verify` and `pushkit doctor`; tokens of a gateway's callers.
    "jwt": {"pushkit.gateway", "pushkit.signing"},
    "re2": {"pushkit.schemas"},
    "referencing": {"pushkit.schemas"},
    "opentelemetry": {"pushkit.telemetry"},
    "prometheus_client": {"pushkit.telemetry"},
    "orjson": {"pushkit.bounded_json"},
    "pydantic_core": {"pushkit.bounded_json", "pushkit.terminal"},
    "pydantic": {"pushkit.cli", "pushkit.terminal", "receiver.settings"},
    "redis": {"receiver.forwards"},
    "rfc8785": {"pushkit.cards"},
    "sqlite3": {"pushkit.storage"},
    "tenacity": {"pushkit.scheduling"},
}

PACKAGES = ("pushkit", "receiver")

# Words that no identifier has: the field's are decide and classify, snooze, rate, remedy, state,
# numbers, gauges, handler.
GONE = {"judge", "judged", "park", "parked", "pace", "mend", "mends", "standing", "standings"} | {
    "figures", "readings", "edge",
}  # fmt: skip

# The doors that name their classes alike: what `receive()` and the test kit return, and the two
# adapters of an SDK, of which an application has one.
DOORS_OF_ONE_NAME = {"Answer", "PushkitConfigStore", "PushkitNotificationSender"}


@dataclass(frozen=True)
class Module:
    """What a module imports."""

    path: Path  # where it is
    names: frozenset[str]  # the full names that it imports, without what only types need
    read_with: frozenset[str]  # our modules that it names, also for types or within a function
    private: frozenset[str]  # what it takes of our modules that has an underscore
    classes: tuple[str, ...]  # the names of its classes
    named: frozenset[str]  # all that it gives a name to, and its own

    @property
    def package(self) -> str:
        return self._place[0]

    @property
    def room(self) -> str:
        return self._place[1]

    @property
    def _place(self) -> tuple[str, ...]:
        return self.path.relative_to(ROOT).with_suffix("").parts


def read(path: Path) -> Module:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    typing_only = {
        id(child)
        for node in nodes
        if isinstance(node, ast.If)
        if isinstance(node.test, ast.Name)
        if node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names: set[str] = set()
    read_with: set[str] = set()
    private: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if id(node) not in typing_only)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            of = node.module or ""
            if id(node) not in typing_only:
                names.add(of)
            if of.startswith(PACKAGES):
                read_with.update([of, *(f"{of}.{alias.name}" for alias in node.names)])
                private.update(each.name for each in node.names if re.match("_[^_]", each.name))
    classes = tuple(node.name for node in nodes if isinstance(node, ast.ClassDef))
    named = frozenset([path.stem, *(name for node in nodes for name in named_by(node))])
    return Module(path, frozenset(names), frozenset(read_with), frozenset(private), classes, named)


def named_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case _:
            pass


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    found = [read(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(found) > 200
    return found


def row_of(rows: list[set[str]], room: str) -> int:
    for number, row in enumerate(rows):
        if room in row:
            return number
    raise AssertionError(f"{room} stands in no row: give it one")


def imports(modules: list[Module]) -> Iterator[tuple[Module, str]]:
    return ((module, name) for module in modules for name in sorted(module.names))


def told(wrong: Iterable[tuple[Module, str]]) -> list[str]:
    return [f"{module.path.relative_to(ROOT)} imports {name}" for module, name in wrong]


def test_imports_go_down_only(modules: list[Module]) -> None:
    def goes_down(module: Module, name: str) -> bool:
        rows = SENDER_ROWS if module.package == "pushkit" else RECEIVER_ROWS
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0] or "__init__"
        if top != module.package or other == module.room:
            return True
        return row_of(rows, other) > row_of(rows, module.room)

    assert told(each for each in imports(modules) if not goes_down(*each)) == []


def test_the_two_packages_meet_in_the_kernel_only(modules: list[Module]) -> None:
    def stays_apart(module: Module, name: str) -> bool:
        top, _, rest = name.partition(".")
        if module.package == "pushkit":
            return top != "receiver"
        return top != "pushkit" or rest.partition(".")[0] in KERNEL

    assert told(each for each in imports(modules) if not stays_apart(*each)) == []


def test_each_dependency_has_one_door(modules: list[Module]) -> None:
    def uses_the_door(module: Module, name: str) -> bool:
        doors = DOORS.get(name.partition(".")[0])
        return doors is None or f"{module.package}.{module.room}" in doors

    assert told(each for each in imports(modules) if not uses_the_door(*each)) == []


def test_a_name_with_an_underscore_stays_in_its_module(modules: list[Module]) -> None:
    assert told((each, name) for each in modules for name in sorted(each.private)) == []


def test_no_two_classes_have_one_name(modules: list[Module]) -> None:
    counted = Counter(name for module in modules for name in module.classes)
    assert {name for name, number in counted.items() if number > 1} == DOORS_OF_ONE_NAME


def test_identifiers_are_the_words_of_the_field(modules: list[Module]) -> None:
    def words(name: str) -> set[str]:
        return {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}

    gone = [
        f"{module.path.relative_to(ROOT)}: {name}"
        for module in modules
        for name in sorted(module.named)
        if words(name) & GONE
    ]
    assert gone == []


def test_no_files_import_each_other(modules: list[Module]) -> None:
    """Imports for types and within functions count: a reader follows them, too.

    A package's door (`__init__.py`), which only names what is public, does not.
    """
    of_name = {
        ".".join(module.path.relative_to(ROOT).with_suffix("").parts): module for module in modules
    }
    left = {
        name: module.read_with.intersection(of_name).difference([name])
        for name, module in of_name.items()
        if not name.endswith("__init__")
    }
    # A file that imports none of those left is in no circle.
    while free := [name for name, others in left.items() if not others.intersection(left)]:
        for name in free:
            del left[name]
    assert sorted(left) == []

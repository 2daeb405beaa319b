"""Runs tests that were collected once in forked processes, as often as needed."""

from __future__ import annotations

import ast
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

__all__ = ["CANNOT", "Chosen", "Served", "Touched", "finish", "place"]

CANNOT = 99
"""The status of a fork into which a change cannot be put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What one test did without a mutant."""

    passed: bool  # whether it passed
    seconds: float  # how long it took
    lines: Mapping[str, Sequence[int]]  # the lines that it ran in this process, by file
    processes: bool  # whether it started other Python processes, whose lines are unknown


@dataclass(slots=True, eq=False)  # pytest hashes its plugins
class Chosen:
    """A pytest plugin that runs some of the tests, in this order, and reports the first failure."""

    tests: Sequence[str]
    known: Collection[str]  # all names without a mutant: tests with other names are run, too
    path: Path  # the file for the name of the first test that failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {name: number for number, name in enumerate(self.tests)}
        new = len(order)
        chosen = [one for one in items if one.nodeid in order or one.nodeid not in self.known]
        items[:] = sorted(chosen, key=lambda one: order.get(one.nodeid, new))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.path.write_text(report.nodeid)


@dataclass(slots=True, eq=False)
class Served:
    """A pytest plugin that collects the tests, and then runs those of each order in a fork.

    An order without tests measures all of them.
    """

    folder: Path  # where the tests and the code are
    files: Collection[str]  # the files whose lines are recorded
    orders: Connection  # where orders come from, and the status of each goes to
    path: Path  # the file for measurements, or for the first test that failed
    other: Connection  # its other end, to be closed here: otherwise it never ends
    _lines: dict[str, set[int]] = field(default_factory=dict)
    _processes: bool = False
    _failed: str = ""

    def begin(self) -> None:
        """Look at what runs, from before anything is imported."""
        self.other.close()
        self._watch()

    def _watch(self) -> None:
        self._lines = {str(self.folder / name): set() for name in self.files}
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.settrace(None)
        threading.settrace(None)
        at_import = self._found_lines()
        while True:
            try:
                order = self.orders.recv()
            except EOFError:
                return True
            process = os.fork()
            if process == 0:
                os.setsid()
                os._exit(self._obey(order, session, at_import))
            self.orders.send(finish(process, order["seconds"]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def _obey(
        self, order: dict[str, Any], session: pytest.Session, at_import: dict[str, list[int]]
    ) -> int:
        """Run tests, and return 0 if they pass, 1 if one fails, or `CANNOT`."""
        if "tests" not in order:
            sys.addaudithook(self._hear)
            found = {item.nodeid: asdict(self._measured(item)) for item in session.items}
            self.path.write_text(json.dumps({"at_import": at_import, "tests": found}))
            return 0
        if not _patched(**order["change"]):
            return CANNOT
        items = {item.nodeid: item for item in session.items}
        chosen = [items[name] for name in order["tests"]]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                self.path.write_text(self._failed)
                return 1
        return 0

    def _measured(self, item: pytest.Item) -> Touched:
        self._processes, self._failed = False, ""
        self._watch()
        started = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        seconds = time.monotonic() - started
        sys.settrace(None)
        return Touched(
            passed=not self._failed,
            seconds=seconds,
            lines=self._found_lines(),
            processes=self._processes,
        )

    def _found_lines(self) -> dict[str, list[int]]:
        return {
            str(Path(name).relative_to(self.folder)): sorted(lines)
            for name, lines in self._lines.items()
            if lines
        }

    def _enter(self, frame: FrameType, _event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._lines else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and str(arguments[0]).startswith(sys.prefix):
            self._processes = True


def finish(process: int, seconds: float) -> int | None:
    """Wait for a process, and kill it and its children; return its status, if it ended."""
    with os.fdopen(os.pidfd_open(process)) as ended:
        in_time, _, _ = select.select([ended], [], [], seconds)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status if in_time else None


def _patched(*, path: str, before: str, after: str) -> bool:
    """Patch the functions of a module with the code of its changed text; False if impossible."""
    old, new = (_codes(compile(text, path, "exec", dont_inherit=True)) for text in (before, after))
    changed = {code: new[key] for key, code in old.items() if key in new and new[key] != code}
    done = False
    for function in [one for one in gc.get_objects() if isinstance(one, FunctionType)]:
        if function.__code__.co_filename == path and function.__code__ in changed:
            try:
                function.__code__ = changed[function.__code__]
            except ValueError:  # it needs other variables of what is around it
                return False
            done = True
    return done


def _codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of every function of a module, by its name and number."""
    found: dict[tuple[str, int], CodeType] = {}
    seen: dict[str, int] = defaultdict(int)
    rest = [module]
    while rest:
        code = rest.pop(0)
        found[code.co_qualname, seen[code.co_qualname]] = code
        seen[code.co_qualname] += 1
        rest += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


def place(source: str, line: int) -> frozenset[int] | None:
    """Return the lines of the innermost statement of a line; None if it runs at import."""
    inside, statement = False, None
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while nodes:
        node, in_function = nodes.pop()
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            statement, inside = node, in_function
            nodes.clear()
        in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        nodes.extend((child, in_function) for child in ast.iter_child_nodes(node))
    if statement is None or not inside:
        return None
    blocks = [one for one in ast.walk(statement) if isinstance(one, ast.stmt)][1:]
    taken = {number for one in blocks for number in range(one.lineno, (one.end_lineno or 0) + 1)}
    lines = {line}
    for step in (-1, 1):
        number = line + step
        while statement.lineno <= number <= (statement.end_lineno or 0) and number not in taken:
            lines.add(number)
            number += step
    return frozenset(lines)

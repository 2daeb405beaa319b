"""Which test runs which line, and so which tests can catch a mutant."""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

__all__ = ["Chosen", "Touched", "Watch", "place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What one test did when nothing was changed.

    Attributes:
        passed: Whether it passed.
        seconds: How long it took.
        lines: Which lines of which files it ran, in this process.
        processes: Whether it started Python elsewhere, where nobody sees what runs.
    """

    passed: bool
    seconds: float
    lines: Mapping[str, Sequence[int]]
    processes: bool


@dataclass(slots=True, eq=False)  # pytest hashes its plugins
class Watch:
    """A pytest plugin that writes down what every test touches.

    Attributes:
        files: The files that are looked at, in full.
        path: Where it is written to.
    """

    files: Collection[str]
    path: Path
    _found: dict[str, Touched] = field(default_factory=dict)
    _lines: dict[str, set[int]] = field(default_factory=dict)
    _processes: bool = False
    _passed: bool = True

    def pytest_sessionstart(self) -> None:
        sys.addaudithook(self._hear)
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {name: set() for name in self.files}
        self._processes, self._passed = False, True
        started = time.monotonic()
        result = yield
        self._found[item.nodeid] = Touched(
            passed=self._passed,
            seconds=time.monotonic() - started,
            lines={name: sorted(lines) for name, lines in self._lines.items() if lines},
            processes=self._processes,
        )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and not report.failed

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        threading.settrace(None)
        self.path.write_text(json.dumps({name: asdict(one) for name, one in self._found.items()}))

    def _enter(self, frame: FrameType, _event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._lines else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and str(arguments[0]).startswith(sys.prefix):
            self._processes = True


@dataclass(slots=True, eq=False)  # pytest hashes its plugins
class Chosen:
    """A pytest plugin that runs some of the tests, in this order, and tells which failed first.

    Attributes:
        tests: Their names.
        known: All names there were without a mutant: others are run, too.
        path: Where the first that failed is written to.
    """

    tests: Sequence[str]
    known: Collection[str]
    path: Path

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {name: number for number, name in enumerate(self.tests)}
        new = len(order)
        chosen = [one for one in items if one.nodeid in order or one.nodeid not in self.known]
        items[:] = sorted(chosen, key=lambda one: order.get(one.nodeid, new))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.path.write_text(report.nodeid)


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

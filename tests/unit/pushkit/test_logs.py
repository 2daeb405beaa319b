from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import pytest

from pushkit.logs import RepeatedLog
from pushkit.terminal.output import JsonLines, TextLines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> RepeatedLog:
    return RepeatedLog(logging.getLogger("repeated"), interval=timedelta(seconds=60), clock=clock)


def test_logs_a_cause_once_in_an_interval(
    log: RepeatedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for _ in range(100):
        said.append(log.log("away", logging.WARNING, "away: %s", "db"))
        clock.now += 0.5

    assert sum(said) == 1
    assert [record.getMessage() for record in caplog.records] == ["away: db"]


def test_logs_how_many_lines_were_suppressed(
    log: RepeatedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        log.log("away", logging.WARNING, "away: %s", "db")
    clock.now = 60.0
    log.log("away", logging.WARNING, "away: %s", "db")
    clock.now = 120.0
    log.log("away", logging.WARNING, "away: %s", "db")

    assert [record.getMessage() for record in caplog.records] == [
        "away: db",
        "away: db (and 4 more like it since the last such line)",
        "away: db",
    ]


def test_tells_causes_apart(log: RepeatedLog, caplog: pytest.LogCaptureFixture) -> None:
    log.log("one", logging.WARNING, "one")
    log.log("two", logging.ERROR, "two")

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_logs_the_traceback_with_the_line(
    log: RepeatedLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.log("failed", logging.ERROR, "failed", exc_info=ValueError("why"))

    assert "ValueError: why" in caplog.text


def test_remembers_no_more_causes_than_its_bound(
    log: RepeatedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_001):
        log.log(number, logging.WARNING, "cause")
    caplog.clear()

    assert not log.log(1_000, logging.WARNING, "the newest is remembered")
    assert log.log(0, logging.WARNING, "the oldest is forgotten")


def test_an_interval_has_a_bounded_number_of_lines_for_all_causes(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RepeatedLog(logging.getLogger("repeated"), most=3, clock=clock)
    said = []
    for minute in range(2):
        clock.now = 60.0 * minute
        said += [log.log(("away", n), logging.WARNING, "away: %d", n) for n in range(2_000)]

    assert sum(said) == 6
    assert [record.getMessage() for record in caplog.records] == [
        "away: 0",
        "away: 1",
        "away: 2",
        "away: 0 (and 1997 more like it since the last such line)",
        "away: 1",
        "away: 2",
    ]


@pytest.mark.parametrize("odd", [float("nan"), {("a", "b"): 1}, [float("-inf")]])
def test_a_line_is_json_whatever_an_application_adds(odd: object) -> None:
    record = logging.makeLogRecord({"msg": "said", "odd": odd, "task": "task-1"})
    line = json.loads(JsonLines().format(record), parse_constant=pytest.fail)
    assert (line["message"], line["task"], line["odd"]) == ("said", "task-1", str(odd))
    assert isinstance(line["process"], int)


FORGED = "a\n2026-01-01 00:00:00,000 INFO 1 receiver: accepted\x1b[2J\u2028\x85\rb"


def _raised(make: Callable[[], Exception]) -> Exception:
    try:
        _raise(make())
    except Exception as exc:  # noqa: BLE001
        return exc


def _raise(exc: Exception) -> NoReturn:
    raise exc


def _caused() -> Exception:
    exc = KeyError("key")
    exc.__cause__ = _raised(lambda: ValueError(FORGED))
    return exc


def _in_context() -> Exception:
    exc = KeyError("key")
    exc.__context__ = _raised(lambda: ValueError(FORGED))
    return exc


def _noted() -> Exception:
    exc = ValueError("text")
    exc.add_note(FORGED)
    return exc


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ValueError(FORGED), id="its text"),
        pytest.param(_caused, id="its cause's"),
        pytest.param(_in_context, id="its context's"),
        pytest.param(_noted, id="a note"),
        pytest.param(lambda: ExceptionGroup("of", [_raised(_caused)]), id="a group's"),
        pytest.param(lambda: SyntaxError(FORGED), id="a syntax error's"),
    ],
)
def test_an_exceptions_text_is_one_line_of_a_traceback(make: Callable[[], Exception]) -> None:
    exc = _raised(make)
    record = logging.makeLogRecord(
        {"msg": "failed: %s", "args": (FORGED,), "exc_info": (type(exc), exc, exc.__traceback__)}
    )
    lines = TextLines("%(levelname)s: %(message)s").format(record).split("\n")
    assert lines[0].startswith(r"Level None: failed: a\n2026-01-01")
    assert not [line for line in lines if line.lstrip(" |").startswith("2026")]
    assert all(line.isprintable() for line in lines)
    assert sum(r"\x1b[2J\u2028\x85\x0db" in line for line in lines[1:]) == 1


def test_a_traceback_has_the_causes_before_the_exception() -> None:
    exc = _raised(_caused)
    record = logging.makeLogRecord({"exc_info": (type(exc), exc, exc.__traceback__)})
    lines = TextLines("%(message)s").format(record).split("\n")
    shown = [line for line in lines if line and not line.startswith(" ")]
    assert [line.partition(":")[0] for line in shown] == [
        "Traceback (most recent call last)",
        "ValueError",
        "The above exception was the direct cause of the following exception",
        "Traceback (most recent call last)",
        "KeyError",
    ]

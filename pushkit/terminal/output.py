"""What commands print and write (records, tables, untrusted text, files), and services log."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import stat
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import click

from pushkit.errors import ConfigError
from pushkit.files import unmarked

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject


Columns: TypeAlias = "dict[str, str | Callable[[Any], object]]"
"""The columns of a table: for each heading, the path of an attribute or a function."""


def example(*lines: str) -> str:
    """Return the epilog of a command."""
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


def table(*rows: Sequence[str]) -> str:
    """Return rows of cells, of which the first are the headings, aligned in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def columns(paths: str, **made: Callable[[Any], object]) -> Columns:
    """Return the columns of a table.

    Args:
        paths: Paths of attributes, separated by blanks; `HEADING=path` if the heading is not the
            last name of the path.
        **made: Functions that make the cells of further columns, by heading.
    """
    found: dict[str, str | Callable[[Any], object]] = {}
    for each in paths.split():
        heading, _, path = each.rpartition("=")
        found[heading or path.rpartition(".")[2].replace("_", " ").upper()] = path
    return found | made


def table_of(columns: Columns, found: Iterable[object]) -> str:
    """Return a table with a row for each object."""
    cells = [attrgetter(each) if isinstance(each, str) else each for each in columns.values()]
    return table([*columns], *([_cell(read(each)) for read in cells] for each in found))


def lines_of(found: JsonObject) -> str:
    """Return a document as lines, one for each member."""
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in found.items()
    }
    return "\n".join(f"{name:16} {_cell(value)}" for name, value in shown.items())


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case datetime():
            return moment(value)
        case timedelta():
            return f"{value.total_seconds() * 1000:.1f}"  # milliseconds
    return in_a_line(str(value))


def moment(found: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "-" if found is None else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def numbered(number: int, one: str) -> str:
    """Return a number of things, of which the name of one is given: `2 deliveries`."""
    return f"{number} {one if number == 1 else re.sub('(?<!e)y$', 'ie', one) + 's'}"


def in_a_line(text: str) -> str:
    """Return untrusted text on one line, without control characters."""
    return harmless(text.encode("utf-8", "backslashreplace")).replace("\n", "\\n")


def harmless(text: bytes) -> str:
    """Return untrusted bytes as text without control characters, except newlines and tabs."""
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else _escaped(char) for char in decoded
    )


def _escaped(char: str) -> str:
    """Return a character as the log writes it, so that its digits end where they seem to."""
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else ascii(char)[1:-1]


# --- the log of services, as lines for people or JSON objects -------------------------------------


_TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
# The attributes of every record; others were given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = ("pushkit", "receiver")


class LogFormat(StrEnum):
    """The format of a log."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(*, verbose: bool, log_format: LogFormat) -> None:
    """Log warnings and errors to standard error; with `verbose`, also information.

    What a callback's module configures afterwards concerns its own loggers: those of pushkit and
    of the receiver stay as they are.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines(_TEXT))
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    logging.setLoggerClass(_ServiceLogger)
    for name in _OWN:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    for known in tuple(logging.root.manager.loggerDict.values()):
        if type(known) is logging.Logger:
            known.__class__ = _ServiceLogger
    # aiohttp logs malformed requests with a traceback that quotes them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


class _ServiceLogger(logging.Logger):
    """A logger that nothing turns off, if it is pushkit's or the receiver's own.

    `logging.config` turns off all loggers that a configuration does not name.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name != "disabled" or not value or not self._is_own:
            super().__setattr__(name, value)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's
        """Return whether a level is logged: also after `logging.disable`."""
        if self._is_own:
            return level >= self.getEffectiveLevel()
        return super().isEnabledFor(level)

    @property
    def _is_own(self) -> bool:
        return self.name.partition(".")[0] in _OWN


class TextLines(logging.Formatter):
    """Writes one line for a message, and below it the traceback, if there is one.

    The text of a message or an exception may be a stranger's: it stays on its line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines, for a record."""
        record.message = in_a_line(record.getMessage())
        record.asctime = self.formatTime(record)
        lines = [self.formatMessage(record)]
        if record.exc_info and record.exc_info[1] is not None:
            lines += _traceback(record.exc_info[1])
        if record.stack_info:
            lines.append(record.stack_info)
        return "\n".join(lines)


def _traceback(exc: BaseException) -> Iterator[str]:
    """Yield the lines of a traceback: as Python does, but an exception's text is one line."""
    chain: list[tuple[BaseException, str]] = []
    found: BaseException | None = exc
    why = ""
    while found is not None and all(found is not each for each, _ in chain):
        chain.append((found, why))
        why = "The above exception was the direct cause of the following exception:"
        cause = found.__cause__
        if cause is None and not found.__suppress_context__:
            why = "During handling of the above exception, another exception occurred:"
            cause = found.__context__
        found = cause
    for each, then in reversed(chain):
        if each.__traceback__ is not None:
            yield "Traceback (most recent call last):"
            yield "".join(traceback.format_tb(each.__traceback__)).rstrip("\n")
        said = traceback.format_exception_only(each)
        # A syntax error is several lines, which quote a file.
        for text in said if isinstance(each, SyntaxError) else ("".join(said),):
            yield in_a_line(text.rstrip("\n"))
        for part in each.exceptions if isinstance(each, BaseExceptionGroup) else ():
            yield from (f"  | {line}" for lines in _traceback(part) for line in lines.split("\n"))
        if then:
            yield f"\n{then}\n"


class JsonLines(logging.Formatter):
    """Writes one JSON object a line: time, level, logger, process, message and the `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        facts = {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in line}
        try:
            return json.dumps(line | facts, default=str, allow_nan=False)
        except (TypeError, ValueError):  # of an application: NaN, keys of other types, cycles
            return json.dumps(line | {name: str(value) for name, value in facts.items()})


# --- files: one is replaced only by another of its own kind ---------------------------------------


_MAX_CHECKED_BYTES: Final = 1024 * 1024
# What must not be lost, by bytes that are in it, for the message.
_PRECIOUS: Final = {
    b"PRIVATE KEY-----": "a file with private keys",
    b"psk1_": "a file with secret keys",
    b"SQLite format 3\0": "a database",
}


class FileKind(NamedTuple):
    """A kind of file that a command writes."""

    name: str  # with its article
    fits: Callable[[bytes], bool]  # whether a file with this content is one


@dataclass(frozen=True, slots=True, kw_only=True)
class OutFile:
    """The file that a command writes."""

    path: Path | None  # None for standard output
    force: bool = False  # replace it whatever it is

    def check(self, kind: FileKind) -> None:
        """Check that the file may be replaced: it is missing, empty, of this kind, or a device.

        Raises:
            ConfigError: It is another file, and `force` is not set.
        """
        if self.path is None or self.force or not self.path.is_file():
            return
        try:
            with self.path.open("rb") as file:
                content = unmarked(file.read(_MAX_CHECKED_BYTES))
        except OSError as exc:
            raise ConfigError(
                f"{self.path}: cannot be read to see what would be lost ({exc.strerror}):"
                " choose another file, or --force replaces it"
            ) from exc
        if not content.strip() or kind.fits(content):
            return
        found = next((name for mark, name in _PRECIOUS.items() if mark in content), "another file")
        raise ConfigError(
            f"{self.path}: found {found}, expected {kind.name} or no file: choose another file, or"
            " --force replaces it"
        )

    def write(self, content: bytes, kind: FileKind) -> None:
        """Write content of this kind to the file, or to standard output.

        A file is replaced as a whole: it may be served meanwhile, or be the one that was read, and
        a full disk must not leave half of it.

        Raises:
            ConfigError: As for `check`.
        """
        path = self.path
        if path is None:
            click.echo(content, nl=False)
            return
        self.check(kind)
        try:
            is_other = path.exists() and not path.is_file()  # a pipe or a device
            if is_other or not os.access(path.resolve().parent, os.W_OK):
                path.write_bytes(content)
            else:
                _replace(path.resolve(), content)
        except OSError as exc:
            raise click.FileError(str(path), exc.strerror) from exc


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        if target.exists():
            status = target.stat()
            if os.geteuid() == 0:
                os.chown(temporary, status.st_uid, status.st_gid)
            temporary.chmod(stat.S_IMODE(status.st_mode))
        temporary.replace(target)
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        target.write_bytes(content)  # a mount of its own, as in a container: it stays in place
    finally:
        temporary.unlink(missing_ok=True)

"""Long work on a terminal: how far it is, and what Ctrl-C leaves behind."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import click

from pushkit.progress import followed

_AT_MOST_EVERY = 0.1  # seconds
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def showing_progress() -> AbstractContextManager[None]:
    """Show how many are done, if standard error is a terminal; end in good order upon Ctrl-C.

    The work is done in lots, each in a transaction of its own, and finds by itself what is left:
    the same command goes on.
    """
    counter = _Counter(aloud=sys.stderr.isatty())
    said = "interrupted after {}: they stay done, and the same command goes on"
    return _showing(counter, said)


def showing_steps(number: int) -> AbstractContextManager[None]:
    """Show which of so many steps is done, of work that is one transaction; likewise upon Ctrl-C.

    A step may take long, and says nothing meanwhile.
    """
    counter = _Counter(aloud=sys.stderr.isatty(), steps=number)
    counter.show()
    said = "interrupted: all of it is done, or nothing; the same command does what is missing"
    return _showing(counter, said)


@contextlib.contextmanager
def _showing(counter: _Counter, interrupted: str) -> Iterator[None]:
    try:
        with followed(counter.advance):
            yield
    except KeyboardInterrupt:
        counter.clear()
        click.echo(interrupted.format(counter.done), err=True)
        sys.exit(_INTERRUPTED)
    finally:
        counter.clear()


class _Counter:
    def __init__(self, *, aloud: bool, steps: int | None = None) -> None:
        self.done = 0
        self._steps = steps
        self._aloud = aloud
        self._began = self._last = time.monotonic()
        self._width = 0

    def advance(self, count: int) -> None:
        self.done += count
        if self._steps is not None or time.monotonic() - self._last >= _AT_MOST_EVERY:
            self.show()

    def show(self) -> None:
        if not self._aloud:
            return
        self._last = now = time.monotonic()
        if self._steps is None:
            rate = self.done / (now - self._began)
            line = f"{self.done:,} done, {rate:,.0f} a second; Ctrl-C stops, and may go on later"
        else:
            line = f"{self.done} of {self._steps} steps done; Ctrl-C leaves everything as it was"
        click.echo(f"\r{line.ljust(self._width)}", err=True, nl=False)
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", err=True, nl=False)
            self._width = 0

"""Long work on a terminal: how far it is, and what Ctrl-C leaves behind."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import click

from pushkit.progress import followed

_AT_MOST_EVERY = 0.1  # seconds
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@contextlib.contextmanager
def showing_progress() -> Iterator[None]:
    """Show how many are done, if standard error is a terminal; end in good order upon Ctrl-C.

    The work is done in lots, each in a transaction of its own, and finds by itself what is left:
    the same command goes on.
    """
    shown = _Counter(aloud=sys.stderr.isatty())
    try:
        with followed(shown.advance):
            yield
    except KeyboardInterrupt:
        shown.clear()
        said = f"interrupted after {shown.done}: they stay done, and the same command goes on"
        click.echo(said, err=True)
        sys.exit(_INTERRUPTED)
    finally:
        shown.clear()


class _Counter:
    def __init__(self, *, aloud: bool) -> None:
        self.done = 0
        self._aloud = aloud
        self._began = self._last = time.monotonic()
        self._width = 0

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self._aloud and now - self._last >= _AT_MOST_EVERY:
            self._last = now
            rate = self.done / (now - self._began)
            line = f"{self.done:,} done, {rate:,.0f} a second; Ctrl-C stops, and may go on later"
            click.echo(f"\r{line.ljust(self._width)}", err=True, nl=False)
            self._width = len(line)

    def clear(self) -> None:
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", err=True, nl=False)
            self._width = 0

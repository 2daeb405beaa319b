"""Databases that commands read, change or migrate: their progress on a terminal, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

import click

from pushkit.progress import followed
from pushkit.storage.database import Database, opened, upgrade
from pushkit.storage.migrations import Access

T = TypeVar("T")

_AT_MOST_EVERY = 0.1  # seconds
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_IN_BATCHES = " after {}: these stay done; run the same command again to continue"
_AT_ONCE = ": all steps were applied, or none; run the same command again to make sure"


@contextlib.contextmanager
def showing_progress(*, steps: int | None = None) -> Iterator[None]:
    """Show how many items are done, if standard error is a terminal; exit cleanly upon Ctrl-C.

    Args:
        steps: How many steps the work has in its one transaction; each may take long. None for work
            in batches, each in its own transaction, that finds the remaining items when repeated.
    """
    counter = _Counter(steps)
    try:
        with followed(counter.advance):
            yield
    except KeyboardInterrupt:
        counter.clear()
        stays = _IN_BATCHES.format(counter.done) if steps is None else _AT_ONCE
        click.echo(f"interrupted{stays}", err=True)
        sys.exit(_INTERRUPTED)
    finally:
        counter.clear()


def run_interruptibly(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in an event loop that every Ctrl-C wakes.

    `asyncio.run` alone does not see one that comes just before its loop waits, until something else
    wakes the loop: here, that may be the end of a long statement in another thread.
    """

    async def woken() -> T:
        # The handler is never called. With it, asyncio lets all signals wake the loop.
        asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)
        return await main

    is_main = threading.current_thread() is threading.main_thread()
    return asyncio.run(woken() if is_main else main)  # only the main thread gets signals


class _Counter:
    def __init__(self, steps: int | None) -> None:
        self.done = 0
        self._steps = steps
        self._visible = sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._width = 0
        if steps is not None:
            self.show()

    def advance(self, count: int) -> None:
        self.done += count
        if self._steps is not None or time.monotonic() - self._last >= _AT_MOST_EVERY:
            self.show()

    def show(self) -> None:
        if not self._visible:
            return
        self._last = now = time.monotonic()
        if self._steps is None:
            rate = self.done / (now - self._began)
            line = f"{self.done:,} done, {rate:,.0f} a second; Ctrl-C stops, run again to continue"
        else:
            line = f"{self.done} of {self._steps} steps done; Ctrl-C undoes them all"
        click.echo(f"\r{line.ljust(self._width)}", err=True, nl=False)
        self._width = len(line)

    def clear(self) -> None:
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", err=True, nl=False)
            self._width = 0


# --- databases ------------------------------------------------------------------------------------


A = TypeVar("A")
R = TypeVar("R")

check_option = click.option(
    "--check", is_flag=True, help="Change nothing; exit with 1 if a migration is needed."
)


class OperatedDatabase(Generic[A]):
    """A database for the commands of operators; opened for each use.

    Args:
        find: Returns the database, not yet open; raises ConfigError if there is none.
        admin: Makes the operators' interface to the open database.
    """

    def __init__(self, find: Callable[[], Database], admin: Callable[[Database], A]) -> None:
        self._find = find
        self._admin = admin

    def look(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Run `work` on the database, opened for reading."""
        return run_interruptibly(self._work(Access.READ, work))

    def change(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Run `work` on the database, opened for writing, and show its progress."""
        with showing_progress():
            return run_interruptibly(self._work(Access.WRITE, work))

    async def _work(self, access: Access, work: Callable[[A], Awaitable[R]]) -> R:
        async with opened(self._find(), access) as database:
            return await work(self._admin(database))


def migrate_database(found: Database, *, check: bool) -> None:
    """Migrate a database to this version's schema, or print what that would do, and exit."""
    schema = run_interruptibly(found.schema())
    if check:
        schema.check_known()
        click.echo(schema.outlook)
        sys.exit(0 if schema.is_current else 1)
    with showing_progress(steps=len(schema.missing)):
        done = run_interruptibly(upgrade(found)).done
    click.echo(done)

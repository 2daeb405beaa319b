"""Benchmarks of senders and receivers, compared with the SDKs' own senders and a bare handler."""

from __future__ import annotations

import sys


def pinned(core: int) -> list[str]:
    """Return the prefix of a command that pins it to a core, if that core exists."""
    code = (
        "import contextlib, os, sys\n"
        "with contextlib.suppress(OSError, AttributeError):\n"
        f"    os.sched_setaffinity(0, {{{core}}})\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code]

"""How many deliveries a second, at what cost and latency, beside the SDKs' own senders."""

from __future__ import annotations

import sys


def pinned(core: int) -> list[str]:
    """Return what puts a command on a core, where there is that one, and it may be had."""
    code = (
        "import contextlib, os, sys\n"
        "with contextlib.suppress(OSError, AttributeError):\n"
        f"    os.sched_setaffinity(0, {{{core}}})\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code]

"""How many deliveries a second, at what cost and latency, beside the SDKs' own senders."""

from __future__ import annotations

import os
import sys


def pinned(core: int) -> list[str]:
    """Return what puts a command on a core, where there are two."""
    if (os.cpu_count() or 1) < 2:
        return []
    code = (
        f"import os, sys; os.sched_setaffinity(0, {{{core}}}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code]

"""Work that takes as long as a test wants: while there is a file `hold` in the agent's folder."""

from __future__ import annotations

import asyncio
from pathlib import Path


async def released(folder: Path) -> None:
    """Wait until the file is gone, if there is one."""
    while (folder / "hold").exists():  # noqa: ASYNC110  # another process removes it
        await asyncio.sleep(0.02)

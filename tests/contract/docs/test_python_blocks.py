"""The Python of docs/ runs: of each page one block after another.

That of `SESSIONS` is run by `test_shell_blocks.py`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest

from tests.contract.docs.bench import bench
from tests.contract.docs.blocks import SESSIONS, Block, of, pages_with
from tests.contract.docs.conftest import World
from tests.eventually import DEADLINE


@pytest.mark.parametrize("page", [page for page in pages_with("python") if page not in SESSIONS])
async def test_the_python_of_a_page_runs(page: str, world: World) -> None:
    blocks = of(page, "python", "toml")
    write_what_is_a_file(blocks)
    async with bench(page, world) as names, asyncio.timeout(DEADLINE):
        for block in blocks:
            if block.language == "python":
                await run(block, names)


def write_what_is_a_file(blocks: list[Block]) -> None:
    """Write blocks that begin with the comment of a file's name."""
    for block in blocks:
        if found := re.match(r"# ([\w-]+\.\w+)\n", block.text):
            Path(found[1]).write_text(block.text)


async def run(block: Block, names: dict[str, object]) -> None:
    """Run a block, in which `await` may stand as in a coroutine; errors name the page's line."""
    text = "\n" * (block.line - 1) + block.text
    code = compile(text, f"<{block.page}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ran = eval(code, names)  # noqa: S307  # the page's own code
    if inspect.iscoroutine(ran):
        await ran

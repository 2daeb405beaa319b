"""Serves the agent of a page of docs/frameworks, with a fake model; or the client of them all.

python page_agent.py adk --port 9000 --folder somewhere
python page_agent.py README --port 9001 --agent-port 9000 --folder somewhere
"""

from __future__ import annotations

import argparse
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fake_models
import uvicorn

from pushkit import KeyRing, save_key_ring

PAGES = Path(__file__).resolve().parents[4] / "docs" / "frameworks"


def program_of(page: str) -> str:
    """Return a page's first block of Python that names its file."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    found = re.search(r"^```python\n(# \w+\.py\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page}.md has no program"
    return found[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agent-port", type=int)
    parser.add_argument("--sender", choices=["pushkit"], default="pushkit")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    os.chdir(arguments.folder)
    program = program_of(arguments.page)
    if arguments.agent_port is None:
        save_key_ring("keys.json", KeyRing.create(datetime.now(UTC)))
        getattr(fake_models, f"for_{arguments.page.replace('-', '_')}")()
        program = program.replace("8000", str(arguments.port))
    else:
        program = program.replace("9000", str(arguments.port))
        program = program.replace("8000", str(arguments.agent_port))
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)  # noqa: S102  # the page's own code
    uvicorn.run(names["app"], host="127.0.0.1", port=arguments.port, log_level="warning")

"""Serves the agent of a page of docs/frameworks, with a fake model.

python page_agent.py adk --port 9000 --folder somewhere
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

PAGES = Path(__file__).resolve().parents[3] / "docs" / "frameworks"


def agent_of(page: str, port: int) -> str:
    """Return a page's `agent.py`, at another port."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    found = re.search(r"^```python\n(# agent\.py\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page}.md has no agent.py"
    return found[1].replace("8000", str(port))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["pushkit"], default="pushkit")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    os.chdir(arguments.folder)
    save_key_ring("keys.json", KeyRing.create(datetime.now(UTC)))
    getattr(fake_models, f"for_{arguments.page.replace('-', '_')}")()
    names: dict[str, Any] = {"__name__": "agent"}
    exec(agent_of(arguments.page, arguments.port), names)  # noqa: S102  # the page's own code
    uvicorn.run(names["app"], host="127.0.0.1", port=arguments.port, log_level="warning")

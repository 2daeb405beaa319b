"""Serves an agent of a framework as the framework alone makes it, with a fake model.

python plain_agent.py adk --port 9000 --sender none --folder somewhere
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fake_models
import uvicorn
from holding import released


def adk(port: int) -> Any:
    from google.adk.a2a.utils.agent_to_a2a import to_a2a
    from google.adk.agents import LlmAgent

    fake_models.for_adk()
    agent = LlmAgent(name="helper", description="Answers.", model="gemini-2.5-flash")
    return to_a2a(agent, host="127.0.0.1", port=port)


def fasta2a(port: int) -> Any:
    from fasta2a.pydantic_ai import agent_to_a2a
    from pydantic_ai import Agent
    from pydantic_ai.models.function import FunctionModel

    async def answer(*_: Any) -> AsyncIterator[str]:
        for word in fake_models.WORDS:
            yield word
            await released(Path())

    agent = Agent(FunctionModel(stream_function=answer), name="helper")
    return agent_to_a2a(agent, url=f"http://127.0.0.1:{port}")


AGENTS = {"adk": adk, "fasta2a": fasta2a}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=sorted(AGENTS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["none"], default="none")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    os.chdir(arguments.folder)
    app = AGENTS[arguments.framework](arguments.port)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")

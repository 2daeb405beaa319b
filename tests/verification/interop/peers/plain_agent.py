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


def a2akit(_port: int) -> Any:
    from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

    class Answering(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            for word in fake_models.WORDS[:-1]:
                await ctx.emit_text_artifact(word, append=word != fake_models.WORDS[0])
                await released(Path())
            await ctx.emit_text_artifact(fake_models.WORDS[-1], append=True, last_chunk=True)
            await ctx.complete()

    card = AgentCardConfig(
        name="helper",
        description="Answers.",
        version="0.1.0",
        capabilities=CapabilitiesConfig(streaming=True),
    )
    server = A2AServer(worker=Answering(), agent_card=card)
    return server.as_fastapi_app()


def agno(_port: int) -> Any:
    from agno.agent import Agent
    from agno.db.in_memory import InMemoryDb
    from agno.models.base import Model
    from agno.models.response import ModelResponse
    from agno.os import AgentOS

    class Fake(Model):
        async def ainvoke(self, *_: Any, **__: Any) -> ModelResponse:
            await released(Path())
            return ModelResponse(role="assistant", content="".join(fake_models.WORDS))

        async def ainvoke_stream(self, *_: Any, **__: Any) -> AsyncIterator[ModelResponse]:
            for word in fake_models.WORDS:
                yield ModelResponse(role="assistant", content=word)
                await released(Path())

        def invoke(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        invoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke

    agent = Agent(id="helper", name="helper", model=Fake(id="fake"), db=InMemoryDb())
    return AgentOS(agents=[agent], a2a_interface=True, telemetry=False).get_app()


def langgraph(port: int) -> None:
    """Serve a graph with LangGraph's own development server."""
    from langgraph_api.cli import run_server

    graphs = {"agent": f"{Path(__file__).parent / 'graph.py'}:graph"}
    run_server("127.0.0.1", port, graphs=graphs)


AGENTS = {"a2akit": a2akit, "adk": adk, "agno": agno, "fasta2a": fasta2a, "langgraph": langgraph}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=sorted(AGENTS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["none"], default="none")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    os.chdir(arguments.folder)
    app = AGENTS[arguments.framework](arguments.port)
    if app is not None:
        uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")

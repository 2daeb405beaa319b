"""Models that answer without a network, in the places of those that the pages name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

WORDS = [f"word{number} " for number in range(40)]


def for_adk() -> None:
    from google.adk.models import Gemini, LlmResponse
    from google.genai import types

    async def answer(_self: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        parts = [types.Part(text="".join(WORDS))]
        yield LlmResponse(content=types.Content(role="model", parts=parts))

    Gemini.generate_content_async = answer


def for_strands() -> None:
    from strands.agent import agent
    from strands.models import Model

    class Fake(Model):
        def update_config(self, **_: Any) -> None: ...

        def get_config(self) -> dict[str, Any]:
            return {"model_id": "fake"}

        async def structured_output(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise NotImplementedError
            yield

        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            for word in WORDS:
                yield {"contentBlockDelta": {"delta": {"text": word}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    agent.BedrockModel = Fake


def for_agent_framework() -> None: ...


def for_crewai() -> None: ...


def for_pydantic_ai() -> None: ...

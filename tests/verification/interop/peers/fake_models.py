"""Models that answer without a network, in the places of those that the pages name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holding import released

WORDS = [f"word{number} " for number in range(40)]


def for_adk() -> None:
    from google.adk.models import Gemini, LlmResponse
    from google.genai import types

    async def answer(_self: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await released(Path())
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


def for_agent_framework() -> None:
    import sys
    from types import ModuleType

    from agent_framework import (
        BaseChatClient,
        ChatResponse,
        ChatResponseUpdate,
        Content,
        Message,
        ResponseStream,
    )

    class OpenAIChatClient(BaseChatClient):
        def _inner_get_response(self, *, stream: bool, **_: Any) -> Any:
            async def whole() -> ChatResponse:
                return ChatResponse(messages=[Message("assistant", ["".join(WORDS)])])

            async def words() -> AsyncIterator[ChatResponseUpdate]:
                for word in WORDS:
                    text = Content.from_text(word)
                    yield ChatResponseUpdate(contents=[text], role="assistant")

            return (
                ResponseStream(words(), finalizer=ChatResponse.from_updates) if stream else whole()
            )

    module = ModuleType("agent_framework.openai")
    module.OpenAIChatClient = OpenAIChatClient
    sys.modules["agent_framework.openai"] = module


def for_crewai() -> None:
    import crewai
    from crewai.llms.base_llm import BaseLLM

    class Fake(BaseLLM):
        def call(self, *_: Any, **__: Any) -> str:
            return "Final Answer: " + "".join(WORDS)

        async def acall(self, *_: Any, **__: Any) -> str:
            return self.call()

    own = crewai.Agent

    def agent(**options: Any) -> Any:
        return own(**{**options, "llm": Fake(model="fake")})

    crewai.Agent = agent


def for_pydantic_ai() -> None:
    """Do nothing: the page has a model of pydantic-ai that needs no network."""

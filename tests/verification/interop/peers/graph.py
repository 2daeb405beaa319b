"""A graph of LangGraph whose one node is a fake model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_models
from holding import released
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph


async def answer(_state: MessagesState) -> dict[str, Any]:
    await released(Path())
    return {"messages": [AIMessage("".join(fake_models.WORDS))]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile()

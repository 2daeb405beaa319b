"""CrewAI as a client that waits for push notifications, with a receiver of its own.

python crewai_client.py --port 9001 --agent http://127.0.0.1:9000 --folder somewhere

It delegates a task to the agent, and prints what CrewAI says of it as a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvicorn
from crewai.a2a.updates import PushNotificationConfig
from crewai.a2a.utils.delegation import execute_a2a_delegation

from receiver import Receiver, TaskPolicy, TrustedSender
from receiver.integrations.crewai import ReceiverResults

TOKEN = "a-token-of-16-or-more"


async def main(port: int, agent: str, folder: Path) -> None:
    trusted = TrustedSender(
        name="agent",
        issuer=agent,
        jwks_url=f"{agent}/.well-known/jwks.json",
        tokens=[TOKEN],
        tasks=TaskPolicy.ANY,
    )
    url = f"http://127.0.0.1:{port}"
    receiver = Receiver(
        url=url, senders=[trusted], database=folder / "inbox.db", allow=["127.0.0.1:*"]
    )
    hook = PushNotificationConfig(
        url=f"{url}/a2a/push", token=TOKEN, result_store=ReceiverResults(receiver), timeout=30
    )

    def delegate() -> Any:
        return execute_a2a_delegation(
            endpoint=f"{agent}/.well-known/agent-card.json",
            auth=None,
            timeout=30,
            task_description="hello",
            updates=hook,
        )

    server = uvicorn.Server(
        uvicorn.Config(receiver.asgi(), host="127.0.0.1", port=port, log_level="warning")
    )
    async with receiver:
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.05)
        result = await asyncio.to_thread(delegate)  # a crew is synchronous
        told = {"status": result["status"], "result": result.get("result", result.get("error"))}
        sys.stdout.write(f"{json.dumps(told, default=str)}\n")
        sys.stdout.flush()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.port, arguments.agent, arguments.folder))

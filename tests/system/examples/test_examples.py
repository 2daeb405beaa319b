"""The examples as the README says to run them, as processes of their own.

They run from a copy in which only the ports are other ones, so that nothing on this machine is in
their way, and what they leave behind is left in the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import (
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)

from tests.eventually import DEADLINE, eventually
from tests.forked import forked
from tests.long_runs import LONG
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
PORTS = ("8001", "9000", "9001")


@dataclass
class Running:
    """A process that runs, and what it has printed so far."""

    process: asyncio.subprocess.Process
    log: Path

    def output(self) -> str:
        """Return everything that it printed."""
        return self.log.read_text()

    async def printed(self, pattern: str) -> None:
        """Wait for a line."""

        async def found() -> bool:
            ended = self.process.returncode is not None
            seen = re.search(pattern, self.output(), re.MULTILINE) is not None
            assert seen or not ended, f"it ended with {self.process.returncode}: {self.output()}"
            return seen

        await eventually(found)

    async def ended(self) -> int:
        """Wait for its end and return the exit status."""
        return await asyncio.wait_for(self.process.wait(), 2 * DEADLINE)

    async def stop(self) -> int:
        """End it as an init system does; return the exit status, also of one that has ended."""
        if self.process.returncode is None:
            self.process.terminate()
        return await self.ended()


@dataclass
class Copy:
    """The examples, with free ports."""

    folder: Path
    ports: dict[str, int]

    @contextlib.asynccontextmanager
    async def run(self, *arguments: str, group: bool = False) -> AsyncIterator[Running]:
        """Run a Python command line from the copy's root; in a process group of its own?"""
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        program, rest = [sys.executable], arguments
        if arguments[0] == "-m":
            program, rest = forked(arguments[1]), arguments[2:]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RECEIVER_")}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *program,
                *rest,
                cwd=self.folder,
                env={**environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=output,
                process_group=0 if group else None,
            )
        try:
            yield Running(process=process, log=log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def run_to_the_end(self, *arguments: str) -> str:
        """Run a command that ends by itself, and return what it printed."""
        async with self.run(*arguments) as running:
            status = await running.ended()
            assert status == 0, running.output()
            return running.output()

    @contextlib.asynccontextmanager
    async def agent_and_client(
        self, agent: tuple[str, ...], client: tuple[str, ...]
    ) -> AsyncIterator[Running]:
        """Run an agent and its client; yield the latter. Neither ends in a traceback."""
        await self.run_to_the_end("-m", "pushkit.cli.main", "keys", "new", "keys.json")
        async with self.run(*agent) as sending, self.run(*client) as receiving:
            await self.listens("8001")
            await self.listens("9000")
            yield receiving
            await receiving.stop()
            await sending.stop()
        assert "Traceback" not in receiving.output() + sending.output()

    async def listens(self, port: str) -> None:
        """Wait until somebody listens at what is this port in the examples."""

        async def connects() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
                writer.close()
                await writer.wait_closed()
                return True
            return False

        await eventually(connects)


CONFIG = "examples/receiver_service/receiver.toml"
SERVICE = ("-m", "receiver.cli", "serve", "--config", CONFIG)
SDK_AGENT = ("examples/a2a_sdk_agent/agent.py", "--allow", "127.0.0.1:*")


@pytest.fixture
def examples(tmp_path: Path) -> Copy:
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    ports = {port: free_port() for port in PORTS}
    for path in [*tmp_path.rglob("*.py"), *tmp_path.rglob("*.toml")]:
        path.write_text(re.sub("|".join(PORTS), lambda m: str(ports[m[0]]), path.read_text()))
    return Copy(folder=tmp_path, ports=ports)


def test_the_commands_stand_in_the_documentation() -> None:
    pages = ("sending.md", "receiving.md", "how-to/local-development.md")
    docs = "".join((ROOT / "docs" / page).read_text() for page in pages)
    for command in (
        "python -m examples.quickstart.receiving",
        "python -m examples.quickstart.sending",
        "python examples/a2a_sdk_agent/agent.py --allow '127.0.0.1:*'",
        "receiver serve --config examples/receiver_service/receiver.toml",
    ):
        assert command in docs
    assert "`examples/fastapi_receiver/app.py`" in (ROOT / "docs/how-to/fastapi.md").read_text()
    assert "examples/demo/demo.py" in (ROOT / "Makefile").read_text()


def test_the_sdk_agent_differs_in_at_most_five_places() -> None:
    source = (ROOT / "examples/a2a_sdk_agent/agent.py").read_text()
    lines = [line for line in source.splitlines() if not line.startswith(("from", "import"))]
    ours = [line for line in lines if re.search("A2AIntegration\\(|PushSender\\(|a2a\\.", line)]
    assert ours
    assert all("# pushkit" in line for line in ours)
    assert len([line for line in lines if "# pushkit" in line]) <= 5


async def test_the_quickstart_delivers_three_updates(examples: Copy) -> None:
    async with examples.run("-m", "examples.quickstart.receiving") as receiver:
        await examples.listens("9001")
        printed = await examples.run_to_the_end("-m", "examples.quickstart.sending")
        assert printed.count("accepted") == 3
        assert "delivered  everything" in printed
        await receiver.printed(r"^completed  task-")
        assert receiver.output().count("update     task-") == 3
        again = await examples.run_to_the_end("-m", "examples.quickstart.sending")
        assert "delivered  everything" in again
        assert await receiver.stop() == 0
    assert "Traceback" not in receiver.output()


async def test_the_agent_and_the_receiver_service_work_together(examples: Copy) -> None:
    async with examples.agent_and_client(SDK_AGENT, SERVICE) as service:
        checked = await examples.run_to_the_end("-m", "receiver.cli", "check", "--config", CONFIG)
        assert "counting-agent: 1 key\n" in checked
        expected = await examples.run_to_the_end("-m", "receiver.cli", "expect", "--config", CONFIG)
        task_id = await send_message(f"http://127.0.0.1:{examples.ports['8001']}", expected)
        await service.printed(rf"^done         task {task_id}")
        lines = service.output().splitlines()
        updates = [line for line in lines if f"task {task_id} seq" in line]
        assert [line.split()[0] for line in updates] == [
            "submitted",
            "working",
            "working",
            "working",
            "artifact-update",
            "completed",
        ]
        assert await service.stop() == 0


async def test_an_agent_with_an_endpoint_of_its_own_pushes_and_says_how_far_it_is(
    examples: Copy,
) -> None:
    async with (
        examples.agent_and_client(("examples/own_agent/agent.py",), SERVICE) as service,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{examples.ports['8001']}",
            headers={"Authorization": "Bearer a-token-of-alice", "A2A-Version": "1.0"},
        ) as client,
    ):
        expected = await examples.run_to_the_end("-m", "receiver.cli", "expect", "--config", CONFIG)
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Count."}]}
        push = {"taskPushNotificationConfig": {**json.loads(expected), "id": "push-1"}}
        task = (await called(client, "SendMessage", message=message, configuration=push))["task"]
        await service.printed(rf"^done         task {task['id']}")
        updates = re.findall(r"^(\S+) +task .* seq (\d)", service.output(), re.MULTILINE)
        assert updates == [
            ("working", "1"),
            *(("artifact-update", seq) for seq in "234"),
            ("completed", "5"),
        ]
        state = await called(client, "GetPushDeliveryState", taskId=task["id"], id="push-1")
        assert state["lastSeq"] == 5
        assert (await called(client, "GetTask", id=task["id"]))["status"] == {
            "state": "TASK_STATE_COMPLETED"
        }


async def called(client: httpx.AsyncClient, method: str, **params: Any) -> Any:
    """Return the result of a call by JSON-RPC."""
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await client.post("/", json=call)).json()["result"]


async def test_the_fastapi_application_awaits_the_agents_task(examples: Copy) -> None:
    client = ("examples/fastapi_receiver/app.py",)
    async with examples.agent_and_client(SDK_AGENT, client) as application:
        url = f"http://127.0.0.1:{examples.ports['9000']}/tasks"
        async with httpx.AsyncClient(timeout=DEADLINE) as asking:
            answer = await asking.post(url, params={"text": "Please count."})
        assert answer.status_code == 200
        assert answer.json()["state"] == "completed"
        await application.printed(rf"^completed  {answer.json()['task']}")


async def send_message(agent: str, config: str) -> str:
    """Send a message with the printed push config, and return the task's id."""
    client = await create_client(agent, ClientConfig(streaming=False, polling=True))
    request = SendMessageRequest(
        message=new_text_message("Please count.", role=Role.ROLE_USER),
        configuration=SendMessageConfiguration(
            return_immediately=True,
            task_push_notification_config=TaskPushNotificationConfig(**json.loads(config)),
        ),
    )
    [event] = [event async for event in client.send_message(request)]
    await client.close()
    return event.task.id


@pytest.mark.skipif(not LONG, reason="it holds with --trace: make test-long")
async def test_the_demo_holds(examples: Copy) -> None:
    printed = await examples.run_to_the_end("examples/demo/demo.py")
    assert "All checks passed" in printed
    assert "✗" not in printed


async def test_ctrl_c_ends_the_demo_without_a_traceback(examples: Copy) -> None:
    async with examples.run("examples/demo/demo.py", group=True) as demo:
        await demo.printed("^receiver http")
        os.killpg(demo.process.pid, signal.SIGINT)  # to its processes, too, as a terminal does
        assert await demo.ended() == 130, demo.output()
        assert "Traceback" not in demo.output()


async def test_the_demo_prints_one_trace_of_its_task_across_three_processes(
    examples: Copy,
) -> None:
    printed = await examples.run_to_the_end("examples/demo/demo.py", "--trace")
    assert re.search(r"^1 trace of \d+ spans, of agent, client, receiver$", printed, re.MULTILINE)
    completed = printed.split("\nprocess ")[1].split("\n\n")[0].splitlines()[-4:]
    assert [line.split("  ")[0] for line in completed] == ["agent", "agent", "receiver", "receiver"]
    names = ["pushkit notify", "pushkit attempt", "pushkit accept", "pushkit callback"]
    columns = [line.find(name) for line, name in zip(completed, names, strict=True)]
    assert columns == sorted(set(columns))
    assert -1 not in columns
    attempts = re.findall(r"pushkit attempt +.* ms  (.+)$", printed, re.MULTILINE)
    assert attempts == ["202"] * 6  # no update waits for a second one
    assert "All checks passed" in printed
    assert "✗" not in printed


async def test_a_key_that_stays_in_a_service_signs(examples: Copy) -> None:
    async with (
        examples.run("-m", "examples.kms_signer.kms"),
        examples.run("-m", "examples.quickstart.receiving") as receiver,
    ):
        await examples.listens("9000")
        await examples.listens("9001")
        sent = await examples.run_to_the_end("-m", "examples.kms_signer.sender")
        await receiver.printed(r"^completed  task-\w+, signed by \S+")
    assert "delivered  signed by the service" in sent

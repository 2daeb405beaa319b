"""Dumps what the a2a-sdk's own SQL stores wrote, for tests/vectors/a2a_sdk_stores.

pip install "a2a-sdk[sqlite,encryption]==1.3.0"    # in an environment of its own
python a2a_sdk_stores.py > ../../../vectors/a2a_sdk_stores/a2a_sdk_1.3.0.json

The configs and tasks are those of a small agent; the tables are what the SDK's models create on
SQLite and on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from importlib.metadata import version
from typing import Any

from a2a.server.models import PushNotificationConfigModel, TaskModel
from a2a.server.tasks import DatabasePushNotificationConfigStore, DatabaseTaskStore
from sqlalchemy import text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateTable

FERNET_KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
TABLES = (TaskModel.__table__, PushNotificationConfigModel.__table__)
CONFIGS = PushNotificationConfigModel.__tablename__
WEBHOOK = "https://client.example.org/a2a/push"

# Task id, state, and its configs: id, owner, URL, whether with token and credentials.
AGENT: list[tuple[str, str, list[tuple[str, str, str, bool]]]] = [
    ("task-working", "working", [("c1", "alice", WEBHOOK, True), ("c2", "bob", WEBHOOK, False)]),
    ("task-asking", "input_required", [("", "alice", WEBHOOK, False)]),
    ("task-done", "completed", [("c1", "alice", WEBHOOK, True)]),
    ("task-failed", "failed", [("c1", "bob", WEBHOOK, True)]),
    ("task-local", "working", [("c1", "bob", "http://169.254.169.254/latest", False)]),
    ("", "", [("c1", "alice", WEBHOOK, False)]),
]


def to_text(value: object) -> object:
    """Return a value of a row as JSON has it: bytes are text of the SDK's anyhow."""
    return value.decode("ascii") if isinstance(value, bytes) else value


async def rows_of(encryption_key: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that the SDK wrote, by table."""
    engine = create_async_engine("sqlite+aiosqlite://")
    tasks = DatabaseTaskStore(engine)
    configs = DatabasePushNotificationConfigStore(engine, encryption_key=encryption_key)
    await tasks.initialize()
    await configs.initialize()
    write = write_v1_0 if version("a2a-sdk").startswith("1.") else write_v0_3
    await write(tasks, configs)
    found = {}
    async with engine.connect() as connection:
        for table in TABLES:
            result = await connection.execute(text(f"SELECT * FROM {table.name}"))  # noqa: S608
            found[table.name] = [
                {name: to_text(value) for name, value in row.items()}
                for row in result.mappings().all()
            ]
    await engine.dispose()
    return found


async def write_v0_3(tasks: Any, configs: Any) -> None:
    """Write what the agent has by the stores of 0.3."""
    from a2a.types import (
        PushNotificationAuthenticationInfo,
        PushNotificationConfig,
        Task,
        TaskState,
        TaskStatus,
    )

    for task_id, state, of_task in AGENT:
        if task_id:
            status = TaskStatus(state=TaskState[state], timestamp="2026-08-01T10:00:00Z")
            await tasks.save(Task(id=task_id, context_id="context-1", status=status))
        for config_id, _owner, url, has_secrets in of_task:
            config = PushNotificationConfig(id=config_id or None, url=url)
            if has_secrets:
                config.token = "token-of-the-client"
                config.authentication = PushNotificationAuthenticationInfo(
                    schemes=["Bearer"], credentials="credentials-of-the-client"
                )
            await configs.set_info(task_id or "task-gone", config)


async def write_v1_0(tasks: Any, configs: Any) -> None:
    """Write what the agent has by the stores of 1.x."""
    from a2a.auth.user import User
    from a2a.server.context import ServerCallContext
    from a2a.types import Task, TaskPushNotificationConfig, TaskState

    class Client(User):
        is_authenticated = True
        user_name = ""

        def __init__(self, name: str) -> None:
            self.user_name = name

    for task_id, state, of_task in AGENT:
        if task_id:
            task = Task(id=task_id, context_id="context-1")
            task.status.state = TaskState.Value(f"TASK_STATE_{state.upper()}")
            task.status.timestamp.FromJsonString("2026-08-01T10:00:00Z")
            await tasks.save(task, ServerCallContext(user=Client(of_task[0][1])))
        for config_id, owner, url, has_secrets in of_task:
            config = TaskPushNotificationConfig(id=config_id, url=url)
            if has_secrets:
                config.token = "token-of-the-client"
                config.authentication.scheme = "Bearer"
                config.authentication.credentials = "credentials-of-the-client"
            context = ServerCallContext(user=Client(owner))
            await configs.set_info(task_id or "task-gone", config, context)


async def main() -> None:
    """Print the dump."""
    dialects = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}
    dump = {
        "source": f"a2a-sdk {version('a2a-sdk')}: its own SQL stores",
        "fernet_key": FERNET_KEY,
        "tables": {
            name: [str(CreateTable(table).compile(dialect=dialect)).strip() for table in TABLES]
            for name, dialect in dialects.items()
        },
        "rows": await rows_of(None),
        "encrypted": (await rows_of(FERNET_KEY))[CONFIGS],
    }
    sys.stdout.write(json.dumps(dump, indent=2) + "\n")


asyncio.run(main())

"""Worlds without programs, whose history is written by hand: for the tests of the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from types import SimpleNamespace
from typing import Any

from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.storage.migrations import migrate
from pushkit.storage.script import to_micros
from pushkit.storage.sqlite import run_script
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.loop import Process
from tests.verification.simulation.mailboxes import Handling
from tests.verification.simulation.pacing import Pacing
from tests.verification.simulation.promises import Promises
from tests.verification.simulation.webhook import Arrival
from tests.verification.simulation.world import EPOCH, World

__all__ = ["Case", "MailboxCase"]


class Case:
    """A sender, a webhook and a receiver."""

    def __init__(self, served_at: Callable[[str], Sequence[float]] | None = None) -> None:
        self.world = World(0)
        self.outbox, self.inbox = Disk(self.world.loop), Disk(self.world.loop)
        run_script(self.outbox.connection, migrate("outbox", SENDER_MIGRATIONS, "outbox"))
        run_script(self.inbox.connection, migrate("inbox", RECEIVER_MIGRATIONS, "inbox"))
        self.process = Process("agent0.1", "198.51.100.1")
        self.promises = Promises(
            self.world,
            self.outbox,
            {"recv0": self.inbox},
            timeout=10.0,
            worker_of=lambda process: f"worker of {process.name}",
            served_at=served_at,
        )
        self.pacing = Pacing(self.world, self.outbox, {"recv0": self.inbox}, slots=4)

    def pass_time(self, seconds: float) -> None:
        self.world.loop._now += seconds

    def subscribe(self, name: str = "sub", origin: str = "https://hook0.example.com") -> None:
        everything = '{"states": null, "kinds": null, "last_chunk_only": false}'
        self.outbox.select(
            "INSERT OR IGNORE INTO pushkit_subscriptions (id, tenant, task_id, owner, config_id,"
            " version, url, origin, schemes, profile, filter, created_at, updated_at)"
            " VALUES (?1, '', 'task', 'owner', ?1, '1.0', '', ?3, '', '', ?2, 0, 0)",
            name,
            everything,
            origin,
        )

    def store(self, name: str, *, lease_worker: str = "worker of agent0.1", **columns: Any) -> None:
        """Store a delivery, by default one in flight; a pending one is not with the worker."""
        state = columns.pop("state", "in_flight")
        row = {
            "id": name,
            "subscription_id": "sub",
            "tenant": "",
            "owner": "owner",
            "task_id": "task",
            "config_id": "config",
            "seq": 1,
            "origin": "https://hook0.example.com",
            "version": "1.0",
            "body_bytes": 2,
            "state": "pending" if state == "in_flight" else state,
            "waits": int(state == "pending"),
            "notified_at": 0,
            "not_before": 0,
            "scheduled_at": 0,
            **columns,
        }
        self.subscribe(row["subscription_id"])
        if state == "in_flight":
            self.outbox.select(
                "UPDATE pushkit_subscriptions SET lease_worker = ?, sending_to = ? WHERE id = ?",
                lease_worker,
                row["seq"],
                row["subscription_id"],
            )
        places = ", ".join("?" * len(row))
        self.outbox.select(
            f"INSERT INTO pushkit_deliveries ({', '.join(row)}) VALUES ({places})", *row.values()
        )
        self.outbox.select("INSERT INTO pushkit_bodies (id, body) VALUES (?, ?)", name, b"{}")

    def accept(
        self,
        name: str,
        sender: str = "jwt",
        *,
        place: int = 1,
        lease_worker: str | None = "worker of agent0.1",
    ) -> None:
        """Store a notification in the inbox of `recv0`, by default one that its process has."""
        self.inbox.select(
            "INSERT INTO pushkit_inbox_queues (id, tenant, owner, origin, last_seq, lease_worker,"
            " sending_to) VALUES ('task', '', ?1, '', ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE"
            " SET last_seq = excluded.last_seq, sending_to = excluded.sending_to",
            sender,
            place,
            lease_worker,
            0 if lease_worker is None else place,
        )
        self.inbox.select(
            "INSERT INTO pushkit_inbox (queue_id, place, sender, delivery_id, task_id, kid,"
            " missing, late, version, issued_at, received_at, not_before, scheduled_at, body,"
            " body_bytes, body_sha256)"
            " VALUES ('task', ?, ?, ?, 'task', '', 0, 0, '1.0', 0, ?, 0, 0, '', 0, '')",
            place,
            sender,
            name,
            to_micros(EPOCH + timedelta(seconds=self.world.loop.time())),
        )

    def change(self, name: str, **columns: Any) -> None:
        """Change a delivery, and end the lease of its queue."""
        places = ", ".join(f"{column} = ?" for column in columns)
        self.outbox.select(
            f"UPDATE pushkit_deliveries SET {places} WHERE id = ?", *columns.values(), name
        )
        self.outbox.select(
            "UPDATE pushkit_subscriptions SET lease_worker = NULL, sending_to = 0 WHERE id ="
            " (SELECT subscription_id FROM pushkit_deliveries WHERE id = ?)",
            name,
        )

    def ask(self, name: str) -> None:
        """Let an unanswered request arrive."""
        arrival = self._arrival(name)
        arrival.is_heard = lambda: False
        self.pacing.arrived(arrival)

    def arrive(self, name: str, status: int | None = None, **facts: Any) -> Arrival:
        arrival = self._arrival(name, status, **facts)
        self.promises.arrived(arrival)
        return arrival

    def _arrival(self, name: str, status: int | None = None, **facts: Any) -> Arrival:
        return Arrival(
            at=self.world.loop.time(),
            host="hook0.example.com",
            delivery_id=name,
            marker="",
            task="task",
            process=self.process,
            path="/jwt",
            body=facts.pop("body", b"{}"),
            status=status,
            is_heard=lambda: True,
            is_open=lambda: status is None,
            **facts,
        )

    def call_back(self, name: str, body: bytes = b"{}", sender: str = "jwt") -> Any:
        found = self.inbox.select("SELECT id FROM pushkit_inbox WHERE delivery_id = ?", name)
        if not found:
            self.accept(name, sender)
            found = self.inbox.select("SELECT max(id) AS id FROM pushkit_inbox")
        notification: Any = SimpleNamespace(
            id=found[0]["id"], delivery_id=name, body=body, sender=sender, task_id="task"
        )
        self.pass_time(100)  # since the process was last thawed
        self.pacing.calls_back("recv0", notification.id)
        return self.promises.begin_call("recv0", "client", notification, self.process)

    def check_end(self) -> None:
        self.promises.check_end(lambda origin: origin.removeprefix("https://").partition(".")[0])

    def close(self) -> None:
        self.outbox.connection.close()
        self.inbox.connection.close()
        self.world.loop.close()


class MailboxCase(Case):
    """A receiver whose mailbox has two clients."""

    def __init__(self) -> None:
        self.served = [0.0]
        super().__init__(served_at=lambda _: self.served)
        assert self.promises.mailboxes is not None
        self.mailboxes = self.promises.mailboxes
        self.calls: Any = self.promises.calls
        self.one, self.other = (Process(f"reader{n}.1", f"198.51.101.{n}") for n in (1, 2))
        self.pass_time(1000)

    def keep(self, name: str, *, task: str = "task", kept: bool = True, **columns: Any) -> Any:
        """Store a notification that was called back, and kept; return it as a client has it."""
        [(place,)] = self.inbox.select("SELECT COUNT(*) FROM pushkit_inbox")
        self.inbox.select(
            "INSERT INTO pushkit_inbox (queue_id, place, sender, delivery_id, task_id, kid, state,"
            " missing, late, version, issued_at, received_at, not_before, scheduled_at, body,"
            " body_bytes, body_sha256)"
            " VALUES (?1, ?2, 'jwt', ?3, ?1, '', 'done', 0, 0, '1.0', 0, 0, 0, 0, ?4, 2, '')",
            *(task, place, name, b"{}"),
        )
        [(number,)] = self.inbox.select("SELECT MAX(id) FROM pushkit_inbox")
        row = {"queue_id": task, "place": place, "mailbox": "laptop", "notification_id": number}
        row |= dict.fromkeys(("body_bytes", "kept_at", "not_before", "scheduled_at"), 0) | columns
        if kept:
            self.inbox.select(
                f"INSERT INTO pushkit_mailbox ({', '.join(row)})"
                f" VALUES ({', '.join('?' * len(row))})",
                *row.values(),
            )
        return SimpleNamespace(id=number, delivery_id=name, task_id=task, sender="jwt", body=b"{}")

    def begin(self, notification: Any, client: Process | None = None) -> Handling:
        return self.mailboxes.begin("recv0", notification, client or self.one)

    def end(self, handling: Handling, *, ack: int | None = 200) -> None:
        """Let a client end, and its ack be answered."""
        handling.ended = self.world.loop.time()
        if ack is not None:
            self.settle(handling, "ack", ack)

    def settle(self, handling: Handling, verb: str, status: int, *, asked_at: float = inf) -> None:
        self.mailboxes.settled("recv0", handling, verb, status, asked_at)
        if verb == "ack" and status == 200:
            self.inbox.select(
                "UPDATE pushkit_mailbox SET state = 'done' WHERE notification_id = ?",
                handling.notification.id,  # type: ignore[union-attr]
            )

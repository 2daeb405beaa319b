"""Both dashboards in headless Chromium: from a failure to its remedy by clicks, with screenshots.

    python -m tests.verification.soak.dashboards_in_chromium [--pictures FOLDER] [--chromium PATH]

A sender posts to a webhook and a receiver that both refuse. The script finds the failed delivery on
the sender's dashboard, reads its cause, redrives it, and sees it delivered without a reload; on the
receiver's dashboard it finds the refusal, its reason and its remedy. It then does the same without
JavaScript, and reaches every control by the keyboard. Screenshots are light and dark, as wide as a
desk's screen and as a phone's. The exit status is 1 if a step fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import (
    Artifact,
    ArtifactUpdate,
    KeyRing,
    PushConfig,
    PushSender,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.keys.jwks import jwks_document
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.webui.access import DashboardAccess
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.dashboard.app import dashboard_of
from tests.chromium import CHROMIUM, Tab, browser
from tests.ports import free_port
from tests.served import answering, served

TOKEN = "a-token-of-the-dashboards"
ISSUER = "https://agent.example.com"


# --- what is shown ------------------------------------------------------------------------------


@dataclass
class Stage:
    """The addresses of both dashboards, and the answers of the webhook."""

    sender: str
    receiver: str
    answers: dict[str, int]


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Run a sender, a webhook and a receiver in which things have gone wrong, and dashboards."""
    async with contextlib.AsyncExitStack() as stack:
        ring = KeyRing.create(utc_now())
        answers = {"/strict": 400, "/broken": 503}
        hooks = await stack.enter_async_context(served(_webhook(answers)))
        port = free_port()
        receiver = _receiver(folder, ring, port)
        # Before anything is refused: it keeps refusals from now on.
        access = DashboardAccess(token=TOKEN, allow_actions=True)
        inbox = await stack.enter_async_context(served(dashboard_of(receiver, access=access).app()))
        await stack.enter_async_context(served(receiver.app(), port))
        sender = PushSender(
            issuer=ISSUER,
            keys=ring,
            database=folder / "outbox.db",
            allow=["127.0.0.1:*", "localhost:*"],
            options=SenderOptions(keep_answers="all", timeout=timedelta(seconds=5)),
        )
        await stack.enter_async_context(sender)
        outbox = dashboard_app(
            sender.outbox,
            sender.subscription_admin,
            access=access,
            keys=ring,
            issuer=ISSUER,
        )
        shown = await stack.enter_async_context(served(outbox.app()))
        await _happen(sender, hooks, f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        await asyncio.sleep(3)
        _let_an_hour_pass(folder / "outbox.db")
        _let_an_hour_pass_in(folder / "inbox.db")
        yield Stage(sender=shown, receiver=inbox, answers=answers)


def _webhook(answers: dict[str, int]) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.02)
        status = answers.get(request.path, 202)
        said = "" if status < 300 else '{"error": "artifact.parts: expected at least one part"}'
        return web.Response(status=status, text=said)

    return answering(answer)


def _receiver(folder: Path, ring: KeyRing, port: int) -> Receiver:
    jwks = folder / "jwks.json"
    jwks.write_bytes(jwks_document(ring, utc_now()))
    receiver = Receiver(
        url=f"http://127.0.0.1:{port}",
        senders=[
            TrustedSender(
                name="research-agent",
                issuer=ISSUER,
                jwks_file=jwks,
                tokens=[TOKEN],
                tasks=TaskPolicy.ANY,
            )
        ],
        database=folder / "inbox.db",
        retry=RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1)),
    )

    @receiver.on_update(name="handlers:store")
    async def store(_: Notification) -> None:
        await asyncio.sleep(0.01)

    @receiver.on_update(name="handlers:index")
    async def index(notification: Notification) -> None:
        if (notification.task_id or "").endswith("7"):
            raise ConnectionError("the index is away")

    return receiver


async def _happen(sender: PushSender, hooks: str, good: str, wrong: str) -> None:
    path = "/a2a/push"
    for number in range(60):
        url = {5: f"{hooks}/strict", 6: f"{hooks}/broken"}.get(number % 20, f"{hooks}/ok")
        url = f"{good}{path}" if number % 3 == 0 else url
        url = f"{wrong}{path}" if number in (11, 31) else url
        task, token = f"report-{number}", TOKEN if number != 22 else "another-token-than-agreed"
        url = f"{good}{path}" if number == 22 else url
        config = PushConfig(url=url, token=token)
        await sender.subscribe(task, config, version="1.0", owner=f"user-{number % 4}")
        status = TaskStatus(state=TaskState.WORKING)
        await sender.notify(StatusUpdate(task_id=task, context_id="c", status=status))
        artifact = Artifact(artifact_id="a", parts=(TextPart(text="a report"),))
        await sender.notify(ArtifactUpdate(task_id=task, context_id="c", artifact=artifact))
        done = TaskStatus(state=TaskState.COMPLETED)
        await sender.notify(StatusUpdate(task_id=task, context_id="c", status=done))
    async with aiohttp.ClientSession() as stranger:
        for _ in range(4):
            async with stranger.post(f"{good}{path}", json={"statusUpdate": {}}) as answer:
                await answer.read()


def _let_an_hour_pass(outbox: Path) -> None:
    """Copy the deliveries nine times, to times within the last hour."""
    chance = random.Random(7)
    with contextlib.closing(sqlite3.connect(outbox)) as database, database:
        names = [row[1] for row in database.execute("PRAGMA table_info(pushkit_deliveries)")]
        once = database.execute("SELECT * FROM pushkit_deliveries WHERE state = 'delivered'")
        for row in once.fetchall():
            for number in range(9):
                made = dict(zip(names, row, strict=True))
                earlier = chance.randrange(3_500_000_000)
                made["id"] += str(number) if number else ""
                made["seq"] += number * 1000
                made["notified_at"] -= earlier
                made["finished_at"] += chance.randrange(200_000) - earlier
                database.execute(
                    f"REPLACE INTO pushkit_deliveries ({', '.join(made)})"  # noqa: S608  # ours
                    f" VALUES ({', '.join('?' * len(made))})",
                    [*made.values()],
                )
                database.execute(
                    "INSERT OR IGNORE INTO pushkit_bodies (id, body) VALUES (?, ?)",
                    (made["id"], b"{}"),
                )


def _let_an_hour_pass_in(inbox: Path) -> None:
    """Have what came in come all over the last hour."""
    with contextlib.closing(sqlite3.connect(inbox)) as database, database:
        database.execute(
            "WITH earlier AS (SELECT id, ((SELECT max(id) FROM pushkit_inbox) - id)"
            " * ((SELECT max(id) FROM pushkit_inbox) - id) * 2200000 AS by"
            " FROM pushkit_inbox) UPDATE pushkit_inbox SET received_at = received_at - by,"
            " issued_at = issued_at - by, finished_at = finished_at - by"
            " FROM earlier WHERE earlier.id = pushkit_inbox.id"
        )


# --- what is tried ------------------------------------------------------------------------------


@dataclass
class Trial:
    """Clicks through the dashboards, and takes screenshots if asked to."""

    tab: Tab
    at: Stage
    pictures: Path | None

    async def picture(self, name: str) -> None:
        """Take a page in light and in the dark, as wide as a desk's screen and as a phone's."""
        if self.pictures is None:
            return
        await self.tab.picture(self.pictures / f"{name}-light.png")
        await self.tab.picture(self.pictures / f"{name}-dark.png", dark=True)
        await self.tab.picture(self.pictures / f"{name}-phone.png", phone=True)
        await self.tab.picture(self.pictures / f"{name}-phone-dark.png", dark=True, phone=True)

    async def log_in(self, base: str) -> None:
        """Log in, by the keyboard: the field has the focus."""
        await self.tab.open(f"{base}/", "Log in")
        await self.tab.until("document.activeElement.id === 'token'")
        await self.tab.type(TOKEN)
        await self.tab.press("Enter", 13)
        await self.tab.sees("Actions are allowed")

    async def a_failed_delivery(self) -> None:
        """Find it, find out why, redrive it, and see it delivered without a reload."""
        tab = self.tab
        await self.log_in(self.at.sender)
        await tab.sees("dead letters within the last hour")
        await self.picture("sender-overview")
        await tab.click("dead letters within the last hour")
        await tab.sees("Dead letters")
        await self.picture("sender-dead")
        await tab.click("report-25")
        await tab.sees("Why it is dead")
        await tab.sees("The webhook refused the body")
        await tab.click("Show the answers")
        await tab.sees("expected at least one part")
        await self.picture("sender-delivery")
        self.at.answers["/strict"] = 202  # the webhook is mended
        await tab.click("Redrive")
        await tab.sees("1 redriven.")
        await tab.sees("Attempt 2")  # the page has looked again by itself
        await self.picture("sender-delivered")
        for page, says in (
            ("subscriptions", "Subscriptions"),
            ("queues", "Unfinished"),
            ("destinations", "Destinations"),
            ("keys", "Keys"),
        ):
            await tab.open(f"{self.at.sender}/{page}", says)
            await self.picture(f"sender-{page}")

    async def a_refusal(self) -> None:
        """Find a refusal, its reason and its remedy; then redrive after a failed callback."""
        tab = self.tab
        await self.log_in(self.at.receiver)
        await tab.sees("signed for another webhook")
        await self.picture("receiver-overview")
        await tab.click("signed for another webhook")
        await tab.sees("By reason")
        await self.picture("receiver-refusals")
        await tab.click("wrong_audience", within="section:last-of-type td a")
        await tab.sees("Remedy")
        await tab.sees("localhost")
        await tab.sees("not reached")
        await self.picture("receiver-refusal")
        await tab.click("Callbacks")
        await tab.sees("ConnectionError")
        await self.picture("receiver-callbacks")
        await tab.click("notification", within="td a")
        await tab.sees("Why it is dead")
        await self.picture("receiver-notification")
        await tab.click("Redrive", within="button")
        await tab.sees("1 redriven.")
        await tab.click("report-57", within="dd a")
        await tab.sees("Updates by sequence number")
        await self.picture("receiver-task")
        await tab.open(f"{self.at.receiver}/queues", "Queues")
        await self.picture("receiver-queues")

    async def without_scripts(self) -> None:
        """Redrive without JavaScript, by links and forms."""
        await self.tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await self.tab.open(f"{self.at.sender}/deliveries?state=dead", "Dead letters")
        await self.tab.click("report-5")
        await self.tab.sees("Why it is dead")
        await self.tab.click("Redrive", within="button")
        await self.tab.sees("1 redriven.")
        await self.tab.call("Emulation.setScriptExecutionDisabled", value=False)

    async def by_the_keyboard(self) -> None:
        """Reach the content by the first Tab, and every control by the next ones, visibly."""
        tab = self.tab
        await tab.open(f"{self.at.receiver}/", "Notifications by arrival")
        await tab.press("Tab", 9)
        assert await tab.run("document.activeElement.className") == "skip"
        stops = set()
        for _ in range(12):
            await tab.press("Tab", 9)
            stops.add(await tab.run("document.activeElement.innerText.trim()"))
            ring = await tab.run("getComputedStyle(document.activeElement).outlineStyle")
            assert ring != "none", "what has the focus does not show it"
        assert {"Overview", "Callbacks", "Refusals"} <= stops, stops


async def main() -> int:
    """Try everything; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--chromium", default=CHROMIUM)
    asked = parser.parse_args()
    if asked.pictures:
        asked.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as at, browser(asked.chromium) as tab:
            trial = Trial(tab, at, asked.pictures)
            for step in (
                trial.a_failed_delivery,
                trial.a_refusal,
                trial.without_scripts,
                trial.by_the_keyboard,
            ):
                begun = time.monotonic()
                await step()
                print(f"{step.__name__.replace('_', ' ')}: {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

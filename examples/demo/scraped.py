"""Runs the demo's agent with a page of metrics, and a Prometheus that scrapes both sides.

    python examples/demo/scraped.py --port 8001 --allow '127.0.0.1:*'

This is `examples/a2a_sdk_agent/agent.py` with a route `/metrics`. In production, serve it at an
address that only operators can reach.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

EXAMPLES = Path(__file__).resolve().parent.parent
RULES = EXAMPLES.parent / "docs" / "operations" / "alerts.yml"
DEADLINE = 120.0

QUERIES = (
    "sum(pushkit_enqueued_total)",
    'sum(pushkit_attempts_total{code="ok"})',
    'sum(receiver_notifications_total{result="accepted"})',
    "sum(receiver_refusals_total)",
    "sum(receiver_callback_seconds_count)",
)


def serve_agent() -> None:
    """Serve the agent of `examples/a2a_sdk_agent`, with its metrics."""
    import uvicorn
    from starlette.routing import Route

    from pushkit import PushSender
    from pushkit.integrations.asgi import MetricsApp

    sys.path.insert(0, str(EXAMPLES / "a2a_sdk_agent"))
    from agent import build_app

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--allow", action="append", default=[])
    given = parser.parse_args()
    url = f"http://127.0.0.1:{given.port}"
    push = PushSender(issuer=url, keys="keys.json", database="outbox.db", allow=given.allow)
    app = build_app(url, push)
    app.router.routes.append(Route("/metrics", MetricsApp(push)))
    uvicorn.run(app, port=given.port, log_level="warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    async def ask(self, path: str, **query: str) -> Any:
        """Return the answer of its API, as soon as there is one."""
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/api/v1/{path}", params=query) as answer:
                        if answer.status == 200:
                            return (await answer.json())["data"]
                await asyncio.sleep(0.1)

    async def value(self, query: str) -> float:
        """Return the value of an expression; 0 for none."""
        found = (await self.ask("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else 0.0

    async def has_scraped(self, updates: int) -> bool:
        """Return whether both sides were scraped, the receiver after this many updates."""
        targets = (await self.ask("targets"))["activeTargets"]
        waiting = [target for target in targets if target["health"] == "unknown"]
        return not waiting and await self.value(QUERIES[2]) >= updates

    async def report(self, updates: int) -> bool:
        """Print what it scraped after this many updates; return whether both sides are up."""
        async with asyncio.timeout(DEADLINE):
            while not await self.has_scraped(updates):
                await asyncio.sleep(0.2)
        targets = (await self.ask("targets"))["activeTargets"]
        for target in targets:
            print(f"  {target['labels']['job']:10} {target['scrapeUrl']:40} {target['health']}")
        for query in QUERIES:
            print(f"  {query:55} {await self.value(query):g}")
        groups = (await self.ask("rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        firing = [rule["name"] for rule in rules if rule["state"] != "inactive"]
        print(f"  {len(rules)} alert rules loaded, firing: {', '.join(firing) or 'none'}")
        return all(target["health"] == "up" for target in targets) and len(targets) == 2


@contextlib.asynccontextmanager
async def scraping(folder: Path, port: int, pages: Mapping[str, str]) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes these hosts and ports, with the alert rules of the docs."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [target]}]}
            for name, target in pages.items()
        ],
        "rule_files": [str(RULES)],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "prometheus.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C is for the demo, which ends this
        )
        try:
            yield Prometheus(url=f"http://127.0.0.1:{port}")
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has failed
                running.terminate()
            await running.wait()


if __name__ == "__main__":
    serve_agent()

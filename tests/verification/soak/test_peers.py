"""A short run of `peers.py`; the long one has 100 rounds: `--rounds 100`."""

from __future__ import annotations

from pathlib import Path

from tests.long_runs import examples
from tests.verification.soak.peers import Soak

# Every connection is accepted, and what peers sent is kept, a thousand times, up to 300 MB.
WITHOUT_LIMITS = """
from pushkit.net.connection import Connection
from receiver.serving.connection import Connections
from receiver.serving.http1 import RequestParser

kept = bytearray()
feed, on_body = RequestParser.feed, Connection.on_body

def keep(data):
    kept.extend(data * 1000 if len(kept) < 300_000_000 else b"")

Connections.add = lambda *_: None
RequestParser.feed = lambda self, data: keep(data) or feed(self, data)
Connection.on_body = lambda self, chunk: keep(chunk) or on_body(self, chunk)
"""


SEED = 268  # of 192 and 160 connections to the receivers, some silent


async def test_hostile_peers_cost_no_more_than_the_limits_allow(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=1, origins=10)

    assert await soak.run(examples(1), seconds=2) == []


async def test_what_hostile_peers_cost_without_limits_is_seen(tmp_path: Path) -> None:
    only = ("silent", "unread", "answer")
    soak = Soak(tmp_path, seed=SEED, cut=WITHOUT_LIMITS, only=only, origins=10, patience=10)

    complaints = await soak.run(1, seconds=6)

    seen = {each.partition(":")[0] for each in complaints}
    # On a busy machine, few TLS handshakes end in time.
    assert seen | {"open files while attacked of tls"} == {
        *(f"memory while attacked of {name}" for name in ("plain", "tls", "sender")),
        *(f"memory or files afterwards of {name}" for name in ("plain", "tls", "sender")),
        *(f"open files while attacked of {name}" for name in ("plain", "tls")),
    }

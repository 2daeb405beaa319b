"""The webhook client against the servers that webhooks stand on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.long_runs import examples
from tests.system.integration.real_servers import SERVERS, Certificate, ask_many


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("server", SERVERS)
async def test_every_request_gets_its_own_answer(
    server: str, tmp_path: Path, *, is_tls: bool
) -> None:
    certificate = Certificate.issued_in(tmp_path) if is_tls else None
    async with SERVERS[server](certificate) as base:
        await ask_many(base, certificate, random.Random(server), examples(100))  # noqa: S311  # no secret

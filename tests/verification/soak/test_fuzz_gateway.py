"""A short run of the fuzzer of the gateway."""

from __future__ import annotations

import pytest

from tests.verification.soak.fuzz_gateway import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["aiohttp", "uvicorn"])
async def test_the_agent_reads_what_the_gateway_sent(agent: str) -> None:
    assert await fuzz(agent, cases=60, seed=1) > 10

"""The webhook client against real servers, nginx among them.

It sends thousands of requests, with and without TLS, to servers that close kept-alive connections
soon: each request has to get its own answer. Needs nginx (`apt-get install nginx-light`).
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.system.integration.real_servers import SERVERS, Certificate, ask_many, nginx
from tests.verification.soak.killing import options


async def _run(requests: int, seed: int) -> None:
    for name, serve in {**SERVERS, "nginx": nginx}.items():
        with tempfile.TemporaryDirectory() as folder:
            for certificate in (None, Certificate.issued_in(Path(folder))):
                began = time.perf_counter()
                async with serve(certificate) as base:
                    await ask_many(base, certificate, random.Random(seed), requests)
                seconds = time.perf_counter() - began
                how = "TLS" if certificate else "plain"
                print(f"{name}, {how}: {requests} requests, each its own answer ({seconds:.0f} s)")


def main() -> int:
    """Ask all of them, and return the exit code."""
    args = options(__doc__, requests=5000, seed=0).parse_args()  # to each server, each way
    asyncio.run(_run(args.requests, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The CPU time of imports, compared with that of the libraries that they need.

    python benchmarks/imports.py --rounds 15

Each import runs in an interpreter of its own, in turns, and the fastest of its rounds counts. A
round before them writes the byte code, as installers do: without it, every import compiles. The
ratio is what pushkit adds; on a busy machine compare ratios of one run alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

STANDARD = (
    "import base64, contextlib, dataclasses, datetime, enum, functools, hashlib, json, pathlib, re,"
    " tomllib, typing, unicodedata"
)
# The libraries of keys and signatures, and of writing and reading a card.
CARDS = (
    f"{STANDARD}; import orjson, rfc8785; from jwcrypto.jwk import JWK;"
    " from cryptography.hazmat.primitives import hashes;"
    " from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa;"
    " ec.ECDSA(hashes.SHA256())"  # loads what verifies
)
# The libraries of connections, name lookup, HTTP answers, waiting, and databases.
NETWORK = "import asyncio, ssl, sqlite3, aiodns, aiohappyeyeballs, httptools, tenacity, logging"
SENDER = RECEIVER = f"{CARDS}; {NETWORK}"
COMMANDS = f"{RECEIVER}; import click, pydantic"

CASES = {
    "import pushkit": (SENDER, "import pushkit"),
    "PushSender": (SENDER, "from pushkit import PushSender"),
    "import receiver": (RECEIVER, "import receiver"),
    "Receiver": (RECEIVER, "from receiver import Receiver"),
    "receiver --version": (COMMANDS, "import receiver.cli"),
    "import pushkit.cards": (CARDS, "import pushkit.cards"),
    "verify_card": (CARDS, "from pushkit.cards import TrustedKeys, load_public_keys, verify_card"),
    "CardTrust, verify_cards": (SENDER, "from pushkit.cards import CardTrust, verify_cards"),
}
_CLOCK = "import time; began = time.process_time(); {}; print(time.process_time() - began)"


def seconds(statement: str, byte_code: str) -> float:
    """Return the CPU time of a statement in a new interpreter."""
    command = [sys.executable, "-c", _CLOCK.format(statement)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": byte_code}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def main() -> None:
    """Print one row per import."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=15)
    rounds = arguments.parse_args().rounds
    print(f"{'':26}{'libraries':>12}{'with pushkit':>14}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as byte_code:
        for name, (libraries, statement) in CASES.items():
            both = (libraries, f"{libraries}; {statement}")
            taken = [[seconds(each, byte_code) for each in both] for _ in range(rounds + 1)]
            alone, whole = (min(column) for column in zip(*taken[1:], strict=True))
            print(f"{name:26}{alone * 1e3:9.0f} ms{whole * 1e3:11.0f} ms{whole / alone:8.2f}")


if __name__ == "__main__":
    main()

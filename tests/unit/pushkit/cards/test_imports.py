"""What is loaded with the packages, and with what they export: each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

NETWORK = {"aiodns", "aiohttp", "httptools", "sqlite3", "tenacity"}
OFFLINE = "CardPolicy, TrustedKeys, canonicalize, load_card_trust, sign_card, verify_card"


def loaded_after(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return {name.partition(".")[0] for name in ran.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    ["import pushkit.cards", f"from pushkit.cards import {OFFLINE}"],
)
def test_to_sign_and_to_verify_cards_loads_no_network_library(statement: str) -> None:
    assert loaded_after(statement).isdisjoint({*NETWORK, "asyncio", "jwt", "pydantic"})


def test_what_fetches_cards_loads_one() -> None:
    assert "httptools" in loaded_after("from pushkit.cards import verify_cards")


@pytest.mark.parametrize(
    "statement",
    [
        "from pushkit import PushSender",
        "from pushkit.cards import CardTrust, verify_cards",
        "from receiver import Receiver",
        "from receiver.pinning import pin_card",
    ],
)
def test_what_sends_and_what_receives_loads_no_web_framework(statement: str) -> None:
    assert loaded_after(statement).isdisjoint({"aiohttp", "yarl", "jinja2", "click", "pydantic"})


def test_every_module_of_the_rooms_that_connect_does_without_a_web_framework() -> None:
    every = (
        "import pkgutil, pushkit.net as room;"
        "[__import__(f'pushkit.net.{each.name}') for each in pkgutil.iter_modules(room.__path__)]"
    )
    assert loaded_after(every).isdisjoint({"aiohttp", "yarl"})


@pytest.mark.parametrize("package", ["pushkit", "pushkit.cards"])
def test_an_import_loads_nothing_that_was_not_asked_for(package: str) -> None:
    libraries = {*NETWORK, "cryptography", "jwcrypto", "pydantic", "rfc8785"}
    assert loaded_after(f"import {package}").isdisjoint(libraries)


@pytest.mark.parametrize("package", ["pushkit", "pushkit.cards"])
def test_a_name_that_is_not_exported_is_an_attribute_error(package: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        loaded_after(f"import {package}; {package}.no_such_name")
    assert loaded_after(f"import {package}; assert set(dir({package})) == set({package}.__all__)")


@pytest.mark.parametrize(
    "statement",
    ["from receiver import verify_notification", "from pushkit.cards import verify_card"],
)
def test_to_verify_needs_nothing_that_windows_lacks(statement: str) -> None:
    assert "receiver" in loaded_after(f"sys.modules['fcntl'] = None; import receiver; {statement}")

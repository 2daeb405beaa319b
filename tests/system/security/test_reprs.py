"""No `repr()` of our own data shows a secret: tracebacks with locals, and debuggers, print them."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator

import pushkit
import receiver
from receiver.tokens import HandedOut

SECRETS = {"client_secret", "credentials", "password", "secret", "token", "tokens"}
TEXT = ("str", "bytes", "Sequence[str]", "tuple[str, ...]")


def every_class() -> Iterator[type]:
    for package in (pushkit, receiver):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            yield from (
                each
                for each in vars(module).values()
                if isinstance(each, type) and each.__module__ == found.name
            )


def test_no_secret_of_a_dataclass_is_shown() -> None:
    shown: set[str] = set()
    hidden: set[str] = set()
    for each in every_class():
        if not dataclasses.is_dataclass(each) or each is HandedOut:  # which holds hashes
            continue
        for field in dataclasses.fields(each):
            if field.name in SECRETS and str(field.type).startswith(TEXT):
                (shown if field.repr else hidden).add(f"{each.__qualname__}.{field.name}")
    assert not shown
    assert {"OAuthClient.client_secret", "PushConfig.token", "TrustedSender.tokens"} <= hidden

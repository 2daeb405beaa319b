"""Reads the file of `pushkit worker --destinations`: destination rules, proxy and credentials.

Secrets are in the environment (`client_secret_env`) or in separate files (`client_secret_file`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator

from pushkit.a2a import Authentication
from pushkit.delivery.options import SenderOptions
from pushkit.errors import ConfigError
from pushkit.files import read_text
from pushkit.net.authorization import DestinationCredentials, OAuthClient
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.net.dialling import EgressProxy
from pushkit.net.tls import ClientCertificate
from pushkit.terminal.tables import File, SettingsTable, TomlFile, with_options
from pushkit.url import masked_url

_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class _Table(SettingsTable):
    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        """Check the table as a whole here, where its location in the file is known."""
        try:
            self.build()
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        return self

    def build(self) -> object:
        """Return what the table describes. Raises ConfigError."""
        raise NotImplementedError


@with_options(DestinationRules, without="on_decision", types={"ports": list[int]})
class _Rules(_Table):
    def build(self) -> DestinationRules:
        rules = self.made(DestinationRules)
        DestinationPolicy(rules=rules)
        return rules


@with_options(OAuthClient, without="client_secret")
class _OAuth(_Table):
    client_secret_env: str | None = None
    client_secret_file: File | None = None

    def build(self) -> OAuthClient:
        secret = _secret("client_secret", self.client_secret_env, self.client_secret_file)
        if secret is None:
            raise ConfigError("expected client_secret_env or client_secret_file")
        return self.made(OAuthClient, client_secret=secret)


@with_options(DestinationCredentials, without="authentication")
class _Credentials(_Table):
    oauth: _OAuth | None = None
    client_certificate: File | None = None
    scheme: str | None = None
    credentials_env: str | None = None
    credentials_file: File | None = None
    client_key: File | None = None
    client_key_password_env: str | None = None
    client_key_password_file: File | None = None

    def build(self) -> DestinationCredentials:
        return self.made(
            DestinationCredentials,
            authentication=self._authentication(),
            oauth=self.oauth.build() if self.oauth else None,
            client_certificate=self._certificate(),
        )

    def _authentication(self) -> Authentication | None:
        secret = _secret("credentials", self.credentials_env, self.credentials_file)
        if self.scheme is None and secret is None:
            return None
        if self.scheme is None or secret is None:
            raise ConfigError(
                f"{masked_url(self.origin)}: expected scheme together with credentials_env or"
                " credentials_file"
            )
        return Authentication(schemes=(self.scheme,), credentials=secret)

    def _certificate(self) -> ClientCertificate | None:
        variable, file = self.client_key_password_env, self.client_key_password_file
        if self.client_certificate is None:
            if self.client_key or variable or file:
                raise ConfigError("client_certificate: expected together with its key")
            return None
        return ClientCertificate(
            certificate=self.client_certificate,
            key=self.client_key,
            password=_secret("client_key_password", variable, file),
        )


@with_options(SenderOptions, only="proxy ca_file verify_ownership rate_per_origin")
class _DestinationsFile(_Table):
    rules: _Rules = Field(_Rules.model_construct())
    credentials: list[_Credentials] = Field([])
    proxy_env: str | None = None

    def build(self) -> dict[str, Any]:
        if self.proxy is not None and self.proxy_env is not None:
            raise ConfigError("proxy_env: expected either proxy or proxy_env")
        proxy = _secret("proxy", self.proxy_env, None) if self.proxy is None else self.proxy
        if proxy is not None:
            EgressProxy.parse(proxy)
        return {
            **self.given(SenderOptions),
            "destinations": self.rules.build(),
            "proxy": proxy,
            "credentials": tuple(each.build() for each in self.credentials),
        }


def load_destinations(path: Path) -> dict[str, Any]:
    """Return what the file says, as arguments of `SenderOptions`, with secrets.

    Paths in the file are relative to its directory.

    Raises:
        ConfigError: `file:line: member: …`, one line per mistake. No message repeats a value of the
            file, which may be a secret.
    """
    return TomlFile.read(path).to(_DestinationsFile).build()


def _secret(name: str, variable: str | None, file: Path | None) -> str | None:
    if variable is not None and file is not None:
        raise ConfigError(f"expected either {name}_env or {name}_file")
    if variable is not None:
        secret = os.environ.get(variable)
        if not secret:
            # Something that is not a name of a variable may be the secret itself.
            named = f" {variable}" if _VARIABLE.fullmatch(variable) else " of that name"
            raise ConfigError(f"{name}_env: the variable{named} is not set")
        return secret
    if file is None:
        return None
    secret = read_text(file, setting=f"{name}_file").strip()
    if not secret:
        raise ConfigError(f"{name}_file: {file.name}: empty")
    return secret

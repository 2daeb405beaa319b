"""Reads the file of `pushkit worker --destinations`: destination rules, proxy and credentials.

Secrets are in the environment (`client_secret_env`) or in separate files (`client_secret_file`).
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, model_validator

from pushkit.a2a import Authentication
from pushkit.errors import ConfigError
from pushkit.files import read_file
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.net.dialling import EgressProxy
from pushkit.net.oauth import ClientAuthentication, OAuthClient
from pushkit.net.tls import ClientCertificate
from pushkit.terminal.toml import File, Location, line_of, mistakes_of, name_of
from pushkit.url import masked_url

_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class _Table(BaseModel, extra="forbid", hide_input_in_errors=True):
    @model_validator(mode="after")
    def _can_be_built(self, info: ValidationInfo) -> Self:
        """Check the table as a whole here, where its location in the file is known."""
        try:
            self.build(info.context or Path())
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        return self

    def build(self, base: Path) -> object:
        """Return what the table describes; its paths are relative to `base`. Raises ConfigError."""
        raise NotImplementedError


class _Rules(_Table):
    domains: tuple[str, ...] = ()
    ports: tuple[int, ...] = (443, 8443)
    networks: tuple[str, ...] = ()
    refused_networks: tuple[str, ...] = ()
    allow_domains: tuple[str, ...] = ()
    allow_networks: tuple[str, ...] = ()

    def build(self, base: Path) -> DestinationRules:  # noqa: ARG002  # it names no path
        rules = DestinationRules(**self.model_dump())
        DestinationPolicy(rules=rules)
        return rules


class _OAuth(_Table):
    token_url: str
    client_id: str
    client_secret_env: str | None = None
    client_secret_file: File | None = None
    scope: str = ""
    audience: str = ""
    resource: str = ""
    authentication: ClientAuthentication = ClientAuthentication.BASIC

    def build(self, base: Path) -> OAuthClient:
        secret = _secret(base, "client_secret", self.client_secret_env, self.client_secret_file)
        if secret is None:
            raise ConfigError("expected client_secret_env or client_secret_file")
        settings = self.model_dump(exclude={"client_secret_env", "client_secret_file"})
        return OAuthClient(client_secret=secret, **settings)


class _Credentials(_Table):
    origin: str
    owner: str | None = None
    tenant: str = ""
    scheme: str | None = None
    credentials_env: str | None = None
    credentials_file: File | None = None
    oauth: _OAuth | None = None
    client_certificate: File | None = None
    client_key: File | None = None
    client_key_password_env: str | None = None
    client_key_password_file: File | None = None
    ca_file: File | None = None

    def build(self, base: Path) -> DestinationCredentials:
        return DestinationCredentials(
            origin=self.origin,
            owner=self.owner,
            tenant=self.tenant,
            authentication=self._authentication(base),
            oauth=self.oauth.build(base) if self.oauth else None,
            client_certificate=self._certificate(base),
            ca_file=_path(base, self.ca_file),
        )

    def _authentication(self, base: Path) -> Authentication | None:
        secret = _secret(base, "credentials", self.credentials_env, self.credentials_file)
        if self.scheme is None and secret is None:
            return None
        if self.scheme is None or secret is None:
            raise ConfigError(
                f"{masked_url(self.origin)}: expected scheme together with credentials_env or"
                " credentials_file"
            )
        return Authentication(schemes=(self.scheme,), credentials=secret)

    def _certificate(self, base: Path) -> ClientCertificate | None:
        variable, file = self.client_key_password_env, self.client_key_password_file
        if self.client_certificate is None:
            if self.client_key or variable or file:
                raise ConfigError("client_certificate: expected together with its key")
            return None
        return ClientCertificate(
            certificate=base / self.client_certificate,
            key=_path(base, self.client_key),
            password=_secret(base, "client_key_password", variable, file),
        )


class _File(_Table):
    proxy: str | None = None
    proxy_env: str | None = None
    ca_file: File | None = None
    verify_ownership: bool = False
    rate_per_origin: Annotated[float, Field(gt=0)] | None = None
    rules: _Rules = Field(default_factory=_Rules.model_construct)
    credentials: list[_Credentials] = []

    def build(self, base: Path) -> dict[str, Any]:
        if self.proxy is not None and self.proxy_env is not None:
            raise ConfigError("proxy_env: expected either proxy or proxy_env")
        proxy = self.proxy
        if proxy is None:
            proxy = _secret(base, "proxy", self.proxy_env, None)
        if proxy is not None:
            EgressProxy.parse(proxy)
        rate = {} if self.rate_per_origin is None else {"rate_per_origin": self.rate_per_origin}
        return {
            "destinations": self.rules.build(base),
            "proxy": proxy,
            "ca_file": _path(base, self.ca_file),
            "verify_ownership": self.verify_ownership,
            "credentials": tuple(each.build(base) for each in self.credentials),
            **rate,
        }


_KNOWN = frozenset(
    name for model in (_File, _Rules, _Credentials, _OAuth) for name in model.model_fields
)


def load_destinations(path: Path) -> dict[str, Any]:
    """Return what the file says, as arguments of `SenderOptions`, with secrets.

    Paths in the file are relative to its directory.

    Raises:
        ConfigError: `file:line: member: …`, one line per mistake. No message repeats a value of the
            file, which may be a secret.
    """
    try:
        text = read_file(path).decode("utf-8")
        read = _File.model_validate(tomllib.loads(text), context=path.parent)
        return read.build(path.parent)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        found = mistakes_of(exc, _File)
        raise ConfigError("\n".join(_placed(path, text, *each) for each in found)) from exc
    except (ValueError, RecursionError) as exc:
        says = "expected UTF-8" if isinstance(exc, UnicodeDecodeError) else str(exc)
        raise ConfigError(f"{path}: not TOML: {says}") from exc


def _placed(path: Path, text: str, where: Location, says: str) -> str:
    member, _, rest = says.partition(": ")
    while rest and member in _KNOWN:  # errors of `build` begin with the member
        where, says = (where if where[-1:] == (member,) else (*where, member)), rest
        member, _, rest = says.partition(": ")
    named = f"{name_of(where)}: {says}" if where else says
    return f"{path}:{line_of(text, where)}: {named}"


def _path(base: Path, path: Path | None) -> Path | None:
    return None if path is None else base / path


def _secret(base: Path, name: str, variable: str | None, file: Path | None) -> str | None:
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
    try:
        secret = read_file(base / file).decode("utf-8").strip()
    except OSError as exc:
        raise ConfigError(f"{name}_file: {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name}_file: {file}: not UTF-8") from exc
    if not secret:
        raise ConfigError(f"{name}_file: {file}: empty")
    return secret

"""The file of `pushkit worker --destinations`: where may be posted to, and with what credentials.

Secrets stand in the environment (`client_secret_env`) or in their own files (`client_secret_file`).
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from pushkit.a2a import Authentication
from pushkit.errors import ConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.net.oauth import ClientAuthentication, OAuthClient
from pushkit.net.proxy import EgressProxy
from pushkit.net.tls import ClientCertificate
from pushkit.terminal.toml_places import Location, did_you_mean, line_of, name_of
from pushkit.url import masked_url

_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class _Table(BaseModel, extra="forbid", hide_input_in_errors=True): ...


class _Rules(_Table):
    domains: tuple[str, ...] = ()
    ports: tuple[int, ...] = (443, 8443)
    networks: tuple[str, ...] = ()
    refused_networks: tuple[str, ...] = ()
    allow_domains: tuple[str, ...] = ()
    allow_networks: tuple[str, ...] = ()


class _OAuth(_Table):
    token_url: str
    client_id: str
    client_secret_env: str | None = None
    client_secret_file: Path | None = None
    scope: str = ""
    audience: str = ""
    resource: str = ""
    authentication: ClientAuthentication = ClientAuthentication.BASIC


class _Credentials(_Table):
    origin: str
    owner: str | None = None
    tenant: str = ""
    scheme: str | None = None
    credentials_env: str | None = None
    credentials_file: Path | None = None
    oauth: _OAuth | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    client_key_password_env: str | None = None
    client_key_password_file: Path | None = None
    ca_file: Path | None = None


class _File(_Table):
    proxy: str | None = None
    proxy_env: str | None = None
    ca_file: Path | None = None
    verify_ownership: bool = False
    rate_per_origin: Annotated[float, Field(gt=0)] | None = None
    rules: _Rules = _Rules()
    credentials: list[_Credentials] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationsFile:
    """What such a file says, in the words of `SenderOptions`."""

    # Arguments of `SenderOptions`; it holds secrets.
    options: Mapping[str, Any] = field(repr=False)


def load_destinations(path: Path) -> DestinationsFile:
    """Read the file; paths in it are relative to its directory.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake. No message
            repeats a value of the file, which may be a secret.
    """
    try:
        text = path.read_text("utf-8")
        read = _File.model_validate(tomllib.loads(text))
        return DestinationsFile(options=_Reader(path.parent).options(read))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        mistakes = map(_mistake, exc.errors(include_input=False, include_url=False))
        raise ConfigError("\n".join(_placed(path, text, *each) for each in mistakes)) from exc
    except _MistakeError as exc:
        raise ConfigError(_placed(path, text, exc.where, str(exc))) from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: not TOML: {_without_input(exc)}") from exc


class _MistakeError(ConfigError):
    """What only shows when the parts of the file are put together, and where it stands."""

    def __init__(self, where: Location, says: str) -> None:
        super().__init__(says)
        self.where = where


@contextlib.contextmanager
def _at(where: Location) -> Iterator[None]:
    """Give what goes wrong inside its place in the file."""
    try:
        yield
    except _MistakeError:
        raise
    except ConfigError as exc:
        says = str(exc)
        member, _, rest = says.partition(": ")
        while rest and member in _KNOWN:
            where, says = (where if where[-1:] == (member,) else (*where, member)), rest
            member, _, rest = says.partition(": ")
        raise _MistakeError(where, says) from exc


@dataclass(frozen=True, slots=True)
class _Reader:
    base: Path

    def options(self, read: _File) -> dict[str, Any]:
        if read.proxy is not None and read.proxy_env is not None:
            raise _MistakeError(("proxy_env",), "expected either proxy or proxy_env")
        rules = DestinationRules(**read.rules.model_dump())
        with _at(("rules",)):
            DestinationPolicy(rules=rules)
        with _at(()):
            proxy = read.proxy or self._secret("proxy", read.proxy_env, None)
            if proxy is not None:
                EgressProxy.parse(proxy)
        credentials = []
        for number, each in enumerate(read.credentials):
            where = ("credentials", number)
            with _at(where):
                credentials.append(self._credentials(each, where))
        options: dict[str, Any] = {
            "destinations": rules,
            "proxy": proxy,
            "ca_file": self._path(read.ca_file),
            "verify_ownership": read.verify_ownership,
            "credentials": tuple(credentials),
        }
        if read.rate_per_origin is not None:
            options["rate_per_origin"] = read.rate_per_origin
        return options

    def _credentials(self, read: _Credentials, where: Location) -> DestinationCredentials:
        with _at((*where, "oauth")):
            oauth = None if read.oauth is None else self._oauth(read.oauth)
        return DestinationCredentials(
            origin=read.origin,
            owner=read.owner,
            tenant=read.tenant,
            authentication=self._authentication(read),
            oauth=oauth,
            client_certificate=self._certificate(read),
            ca_file=self._path(read.ca_file),
        )

    def _authentication(self, read: _Credentials) -> Authentication | None:
        secret = self._secret("credentials", read.credentials_env, read.credentials_file)
        if read.scheme is None and secret is None:
            return None
        if read.scheme is None or secret is None:
            raise ConfigError(
                f"{masked_url(read.origin)}: expected scheme, and credentials_env or"
                " credentials_file, together"
            )
        return Authentication(schemes=(read.scheme,), credentials=secret)

    def _oauth(self, read: _OAuth) -> OAuthClient:
        secret = self._secret("client_secret", read.client_secret_env, read.client_secret_file)
        if secret is None:
            raise ConfigError("oauth: expected client_secret_env or client_secret_file")
        told = read.model_dump(exclude={"client_secret_env", "client_secret_file"})
        return OAuthClient(client_secret=secret, **told)

    def _certificate(self, read: _Credentials) -> ClientCertificate | None:
        if read.client_certificate is None:
            return None
        return ClientCertificate(
            certificate=self.base / read.client_certificate,
            key=self._path(read.client_key),
            password=self._secret(
                "client_key_password", read.client_key_password_env, read.client_key_password_file
            ),
        )

    def _path(self, path: Path | None) -> Path | None:
        return None if path is None else self.base / path

    def _secret(self, name: str, variable: str | None, file: Path | None) -> str | None:
        if variable is not None and file is not None:
            raise ConfigError(f"expected either {name}_env or {name}_file")
        if variable is not None:
            secret = os.environ.get(variable)
            if not secret:
                # What is no name may be the secret itself, in the wrong place.
                named = f" {variable}" if _VARIABLE.fullmatch(variable) else " of that name"
                raise ConfigError(f"{name}_env: the variable{named} is not set")
            return secret
        return None if file is None else self._read(name, file)

    def _read(self, name: str, file: Path) -> str:
        try:
            secret = (self.base / file).read_text("utf-8").strip()
        except OSError as exc:
            raise ConfigError(f"{name}_file: {file}: {exc.strerror}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{name}_file: {file}: not UTF-8") from exc
        if not secret:
            raise ConfigError(f"{name}_file: {file}: empty")
        return secret


_MODELS = (_File, _Rules, _Credentials, _OAuth)
_KNOWN = frozenset(name for model in _MODELS for name in model.model_fields)


def _mistake(found: ErrorDetails) -> tuple[Location, str]:
    where = found["loc"]
    if found["type"] == "extra_forbidden":
        return where, f"there is no such setting{did_you_mean(str(where[-1]), _KNOWN)}"
    return where, found["msg"]


def _placed(path: Path, text: str, where: Location, says: str) -> str:
    named = f"{name_of(where)}: {says}" if where else says
    return f"{path}:{line_of(text, where)}: {named}"


def _without_input(exc: Exception) -> str:
    return "expected UTF-8" if isinstance(exc, UnicodeDecodeError) else str(exc)

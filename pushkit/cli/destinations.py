"""The file of `pushkit worker --destinations`: where may be posted to, and with what credentials.

Secrets stand in the environment (`client_secret_env`) or in their own files (`client_secret_file`).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pushkit.a2a import Authentication
from pushkit.errors import ConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.destination import DestinationRules
from pushkit.net.oauth import ClientAuthentication, OAuthClient
from pushkit.net.tls import ClientCertificate

__all__ = ["DestinationsFile", "load_destinations"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class _Rules(_Table):
    domains: tuple[str, ...] = ()
    ports: tuple[int, ...] = (443, 8443)
    networks: tuple[str, ...] = ()
    refused_networks: tuple[str, ...] = ()


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
    """What such a file says, in the words of `SenderOptions`.

    Attributes:
        options: Arguments of `SenderOptions`; it holds secrets.
    """

    options: Mapping[str, Any] = field(repr=False)


def load_destinations(path: Path) -> DestinationsFile:
    """Read the file; paths in it are relative to its directory.

    Raises:
        ConfigError: It cannot be read, or says something that it should not; no message repeats a
            value of it.
    """
    try:
        read = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path}: not TOML: {_without_input(exc)}") from exc
    except ValidationError as exc:
        raise ConfigError(f"{path}: {_first(exc)}") from exc
    try:
        return DestinationsFile(options=_Reader(path.parent).options(read))
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class _Reader:
    base: Path

    def options(self, read: _File) -> dict[str, Any]:
        if read.proxy is not None and read.proxy_env is not None:
            raise ConfigError("expected either proxy or proxy_env")
        proxy = read.proxy or self._secret("proxy", read.proxy_env, None)
        options: dict[str, Any] = {
            "destinations": DestinationRules(**read.rules.model_dump()),
            "proxy": proxy,
            "ca_file": self._path(read.ca_file),
            "verify_ownership": read.verify_ownership,
            "credentials": tuple(self._credentials(each) for each in read.credentials),
        }
        if read.rate_per_origin is not None:
            options["rate_per_origin"] = read.rate_per_origin
        return options

    def _credentials(self, read: _Credentials) -> DestinationCredentials:
        return DestinationCredentials(
            origin=read.origin,
            owner=read.owner,
            tenant=read.tenant,
            authentication=self._authentication(read),
            oauth=None if read.oauth is None else self._oauth(read.oauth),
            client_certificate=self._certificate(read),
            ca_file=self._path(read.ca_file),
        )

    def _authentication(self, read: _Credentials) -> Authentication | None:
        secret = self._secret("credentials", read.credentials_env, read.credentials_file)
        if read.scheme is None and secret is None:
            return None
        if read.scheme is None or secret is None:
            raise ConfigError(
                f"{read.origin}: expected scheme, and credentials_env or credentials_file, together"
            )
        return Authentication(schemes=(read.scheme,), credentials=secret)

    def _oauth(self, read: _OAuth) -> OAuthClient:
        secret = self._secret("client_secret", read.client_secret_env, read.client_secret_file)
        if secret is None:
            raise ConfigError("oauth: expected client_secret_env or client_secret_file")
        return OAuthClient(
            token_url=read.token_url,
            client_id=read.client_id,
            client_secret=secret,
            scope=read.scope,
            audience=read.audience,
            resource=read.resource,
            authentication=read.authentication,
        )

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
                raise ConfigError(f"{name}_env: the variable {variable} is not set")
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


def _first(exc: ValidationError) -> str:
    first = exc.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"


def _without_input(exc: Exception) -> str:
    return "expected UTF-8" if isinstance(exc, UnicodeDecodeError) else str(exc)

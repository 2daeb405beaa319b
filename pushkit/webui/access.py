"""Access to a dashboard, for reading and for actions: rules over headers, without a web framework.

1. `Host` must be the address that the request reached, or a configured name. Otherwise a web page
   could point its own name at a loopback address and read the dashboard (DNS rebinding).
2. Without a token, the dashboard is read-only, and only for loopback clients without a proxy.
3. With a token, every request needs it: as a Bearer token, or by a session that began with it.
4. An action comes from a page of this dashboard (`Origin`, `Sec-Fetch-Site`) and carries the
   token of its form; or it carries the Bearer token, which no browser adds by itself.

Sessions and form tokens are authenticated with a key derived from the token: nothing is stored,
all processes with the same token accept them, and a new token ends them all.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pushkit.errors import ConfigError
from pushkit.options import check_list

MIN_TOKEN_CHARS: Final = 20
SESSION_LIFETIME: Final = timedelta(hours=12)

_TOKEN = re.compile(r"[!-~]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9a-fA-F.:]*:[0-9a-fA-F.]*:[0-9a-fA-F.:]*", re.ASCII)
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
# Fields that a proxy adds: the client is then not the peer of the connection.
_PROXY_FIELDS: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAccess:
    """The access rules of one dashboard.

    Raises:
        ConfigError: The token is short or not visible ASCII, actions have no token, or a host is
            not a host name or has a port.
    """

    # The token that every request needs; None allows reading from loopback only.
    token: str | None = field(default=None, repr=False)
    allow_actions: bool = False  # whether anything may be changed
    # Names that `Host` may have besides the address that the request reached, and `localhost`.
    hosts: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.token is not None and (
            len(self.token) < MIN_TOKEN_CHARS or not _TOKEN.fullmatch(self.token)
        ):
            raise ConfigError(
                f"dashboard token: expected {MIN_TOKEN_CHARS} visible ASCII characters or more;"
                " `openssl rand -hex 20` makes one"
            )
        if self.allow_actions and self.token is None:
            raise ConfigError("actions need a token: give one, or leave the dashboard read-only")
        check_list("hosts", self.hosts, shown=False)
        for each in self.hosts:
            if not _NAME.fullmatch(each):
                raise ConfigError(f"hosts: found {each!r}, expected a name without a port")

    # --- 1. the host ---------------------------------------------------------------------------

    def knows_host(self, host: str | None, address: str | None) -> bool:
        """Return whether `Host` means this dashboard; `address` is that of this machine."""
        match = _HOST.fullmatch(host or "")
        if match is None:
            return False
        name = match["name"].lower().strip("[]").removesuffix(".")
        if name in {each.lower() for each in self.hosts}:
            return True
        if name == "localhost":
            return is_loopback(address)
        asked = _address(name)
        return asked is not None and asked == _address(address)

    # --- 2. and 3. reading -----------------------------------------------------------------------

    def may_read_without_token(self, peer: str | None, headers: Mapping[str, str]) -> bool:
        """Return whether a request may read without a token; `headers` has lower-case names."""
        return (
            self.token is None
            and is_loopback(peer)
            and not any(name in headers for name in _PROXY_FIELDS)
        )

    def holds_token(self, token: str) -> bool:
        """Return whether a token is the right one, compared in constant time."""
        return self.token is not None and _is_equal(token, self.token)

    def holds_bearer(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` field carries the token."""
        scheme, _, token = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and self.holds_token(token.strip())

    def token_mark(self) -> str:
        """Return what tells this dashboard's token from others, and nothing more about it."""
        return self._sign("mark", "")[:8]

    def begin_session(self, now: datetime) -> str:
        """Return the value of a new session's cookie."""
        value = f"{int((now + SESSION_LIFETIME).timestamp())}.{secrets.token_hex(16)}"
        return f"{value}.{self._sign('session', value)}"

    def holds_session(self, cookie: str | None, now: datetime) -> bool:
        """Return whether a cookie is of a session that began with this token and is not over."""
        value, _, signature = (cookie or "").rpartition(".")
        if self.token is None or not _is_equal(signature, self._sign("session", value)):
            return False
        return int(now.timestamp()) < int(value.partition(".")[0])

    # --- 4. actions ----------------------------------------------------------------------------

    def form_token(self, session: str, path: str) -> str:
        """Return the token that the form of one action carries, in one session."""
        return self._sign("form", f"{session} {path}")

    def holds_form(self, session: str, path: str, token: str) -> bool:
        """Return whether a form token is of this action and session."""
        return _is_equal(token, self.form_token(session, path))

    @staticmethod
    def is_same_origin(headers: Mapping[str, str]) -> bool:
        """Return whether a browser states that the request is from a page of this dashboard.

        The names of fields are in lower case. A request that states nothing is refused. The scheme
        is not compared: a proxy may terminate TLS.
        """
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site != "same-origin":
            return False
        if origin is not None:
            scheme, mark, authority = origin.partition("://")
            return bool(mark) and scheme in ("http", "https") and authority == headers.get("host")
        return site == "same-origin"

    def _sign(self, purpose: str, value: str) -> str:
        key = hashlib.sha256(f"pushkit dashboard {self.token}".encode()).digest()
        data = f"{purpose} {value}".encode("utf-8", "surrogateescape")
        return hmac.new(key, data, hashlib.sha256).hexdigest()


def is_loopback(address: str | None) -> bool:
    """Return whether an address is a loopback address."""
    found = _address(address)
    mapped = getattr(found, "ipv4_mapped", None) or found
    return mapped is not None and mapped.is_loopback


def _address(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, without its zone; None if it is none."""
    try:
        return ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None


def _is_equal(found: str, expected: str) -> bool:
    """Compare in constant time, also of texts that differ in length."""
    one, other = (each.encode("utf-8", "surrogateescape") for each in (found, expected))
    return hmac.compare_digest(hashlib.sha256(one).digest(), hashlib.sha256(other).digest())

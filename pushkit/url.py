"""URLs from outside: a webhook, a JWK Set, a token endpoint, an audience.

A URL is parsed once, strictly (RFC 3986, narrowed), and all code works with the parts. If two
parsers read one string differently, the address that is checked is not the one that is dialled.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from dataclasses import dataclass, field, replace
from typing import Final

from pushkit.errors import ConfigError, InvalidUrlError

_MAX_CHARS: Final = 2048
_STANDARD_PORTS: Final = {"https": 443, "http": 80}

# Visible ASCII, and an authority without user information.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/[!$&-;=@_a-z~%]*)?(?:\?[!$&-;=?@_a-z~%]*)?)",
    # ASCII: without it, ignoring case lets U+017F pass for an "s" and U+212A for a "k".
    re.IGNORECASE | re.ASCII,
)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_AUTHORITY: Final = re.compile(r"[^:/?#]*://(?:[^/?#]*@)?([^/?#]*)")
# RFC 3986 §3.2: user information after the slashes, or at the beginning if they are missing.
_USER: Final = re.compile(r"(?:\A|(?<=://))[^/?#\s]*@")
# `host=db password=…`, and `user:password@host/name` after slashes, too: a scheme that lacks its
# colon, or a URL that was made an absolute path.
_HAS_PASSWORD: Final = re.compile(
    r".*\bpass\w*\s*=|[^/]*(//.*)?:.*@|.*/[^/]*:[^/]*@", re.IGNORECASE | re.DOTALL
)
_USER_OF_URL: Final = re.compile(r"(\A[^:/?]*://)[^/?]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """An absolute http or https URL, in parts."""

    scheme: str  # `https` or `http`
    host: str  # lower-case name, or an address (IPv6 without brackets)
    port: int  # the port to dial
    # Path and query, at least `/`. Unchanged: a webhook may distinguish spellings.
    target: str = field(repr=False)
    # Scheme, host and port (RFC 6454 §4), the port always.
    origin: str = field(init=False, compare=False, repr=False)
    # The value of `Host`: the port only if it is not the scheme's default (RFC 9110 §4.2.3).
    authority: str = field(init=False, compare=False, repr=False)
    # The URL in the one spelling that `aud` uses (wire profile §3).
    audience: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = self.port == _STANDARD_PORTS[self.scheme]
        authority = host if standard else f"{host}:{self.port}"
        path, mark, query = self.target.partition("?")
        put = functools.partial(object.__setattr__, self)
        put("origin", f"{self.scheme}://{host}:{self.port}")
        put("authority", authority)
        put("audience", f"{self.scheme}://{authority}{path}{mark if query else ''}{query}")

    @classmethod
    def parse(cls, text: str) -> Url:
        """Read a URL.

        Raises:
            InvalidUrlError: It is malformed, or uses a form that is not allowed. The message quotes
                nothing but the port: the query may hold a secret.
        """
        return _parse(text)

    def with_query(self, parameter: str) -> Url:
        """Return the URL with one more parameter in its query."""
        mark = "&" if "?" in self.target else "?"
        return replace(self, target=f"{self.target}{mark}{parameter}")

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


# A process works with few URLs, and parses them at every attempt.
@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Url:
    if len(text) > _MAX_CHARS:
        raise InvalidUrlError(f"URL: longer than {_MAX_CHARS} characters")
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidUrlError(
            "URL: expected https://host[:port]/path in visible ASCII,"
            " without user name, fragment, spaces or backslashes"
        )
    scheme, host, target = match["scheme"].lower(), normalise_host(match["host"]), match["target"]
    port = int(match["port"]) if match["port"] else _STANDARD_PORTS[scheme]
    if not 0 < port <= 65535:
        raise InvalidUrlError(f"URL: {port} is not a port")
    if not host or host.endswith("."):
        raise InvalidUrlError("URL: not a host name")
    target = target if target.startswith("/") else f"/{target}"
    return Url(scheme=scheme, host=host, port=port, target=target)


def unchecked_host(text: str) -> str:
    """Return host and port of what may be no URL, for people, without a user's password."""
    found = _AUTHORITY.match(text)
    return found[1] if found else ""


def normalise_host(host: str) -> str:
    """Return a host in lower case without a trailing dot, an IPv6 address without its brackets.

    Raises:
        InvalidUrlError: The text in brackets is not an IPv6 address.
    """
    host = host.lower()
    if not host.startswith("["):
        return host.removesuffix(".")
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError as exc:
        raise InvalidUrlError("URL: not an IPv6 address") from exc


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets (RFC 3986 §3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_and_port(text: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, IPv6 without brackets; None if it is malformed."""
    host, _, port = text.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)


def audience_of(url: str) -> str:
    """Return the `aud` of a webhook's URL (wire profile §3): without user, fragment, default port.

    Path and query stay unchanged: a webhook may distinguish spellings.

    Raises:
        ConfigError: Not an absolute http or https URL.
    """
    try:
        return Url.parse(_USER_OF_URL.sub(r"\1", url.partition("#")[0])).audience
    except InvalidUrlError as exc:
        raise ConfigError(f"audience: {str(exc).removeprefix('URL: ')}") from exc


def audience_with_query(audience: str, target: str) -> str:
    """Return a configured audience (`audience_of`) with the query of a request.

    An audience that has a query of its own is returned as it is. `target` is the request's path and
    query as received.
    """
    query = target.partition("?")[2]
    return f"{audience}?{query}" if query and "?" not in audience else audience


def masked_url(url: str, *, keep_query: bool = False) -> str:
    """Return a URL without the parts that may be secret: user, password, query and fragment.

    Pass `keep_query` only if the query is known to hold no secret.
    """
    masked = _USER.sub("***@", url)
    if keep_query:
        return masked
    before, mark, _ = masked.partition("?" if "?" in masked else "#")
    return f"{before}{mark}***" if mark else before


def is_http_url(where: str) -> bool:
    """Return whether an argument that names a file or a URL is a URL."""
    return where.lower().startswith(("https://", "http://"))


def has_password(location: str) -> bool:
    """Return whether a location looks like a DSN or a URL with a password, not like a path."""
    return _HAS_PASSWORD.match(location) is not None


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path for an error message; `***` if it may be a DSN or a URL with a password.

    A URL that was made an absolute path is recognised, too.
    """
    text = os.fspath(path)
    return "*** (a URL or DSN)" if _HAS_PASSWORD.search(text) else text

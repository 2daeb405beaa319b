"""An egress proxy, with the guard on (RFC 9110 §9.3.6, CONNECT).

Behind a proxy no socket goes to the destination. So the name is looked up and checked before, and
the proxy is asked for the address that was checked, never for the name, which it would look up
once more. Server name and certificate stay the destination's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.url import Url, parse_host_and_port

_EXPECTED = "expected http://[user:password@]host:port"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProxy:
    """A proxy that the operator configured."""

    host: str  # its name or address
    port: int
    # What it is told about who asks, if anything.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http://[user:password@]host:port`.

        Raises:
            ConfigError: It is something else. The message does not repeat it: it may hold a
                password.
        """
        scheme, _, rest = url.partition("://")
        user, _, place = rest.rpartition("@")
        try:
            found = Url.parse(f"{scheme}://{place}")
        except InvalidUrlError as exc:
            raise ConfigError(f"proxy: {_EXPECTED}") from exc
        has_port = parse_host_and_port(place.removesuffix("/")) is not None
        if found.scheme != "http" or found.target != "/" or not has_port or not user.isascii():
            raise ConfigError(f"proxy: {_EXPECTED}")
        return cls(host=found.host, port=found.port, headers=_authorization(user))


def _authorization(credentials: str) -> dict[str, str]:
    if not credentials:
        return {}
    # RFC 7617 §2: the first colon ends the user name.
    user, _, password = credentials.partition(":")
    encoded = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
    return {"Proxy-Authorization": f"Basic {encoded}"}

"""The `aud` of a notification: the webhook URL in one spelling (wire profile §3)."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from pushkit.errors import ConfigError

__all__ = ["audience_of", "audience_with_query"]

_DEFAULT_PORTS = {"http": 80, "https": 443}


def audience_of(url: str) -> str:
    """Return a URL without fragment, with scheme and host in lower case and no default port.

    Path and query stay to the letter: a webhook may well tell them apart.

    Raises:
        ConfigError: Not an absolute http or https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError("audience: not a URL") from exc
    scheme = parts.scheme.lower()
    host = _normalise_host(parts.hostname or "")
    if scheme not in _DEFAULT_PORTS or not host:
        raise ConfigError("audience: expected an absolute http or https URL")
    authority = host if port in (None, _DEFAULT_PORTS[scheme]) else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{authority}{parts.path or '/'}{query}"


def _normalise_host(host: str) -> str:
    if ":" not in host:
        return host.lower().rstrip(".")
    try:
        return f"[{ipaddress.IPv6Address(host)}]"
    except ValueError as exc:
        raise ConfigError("audience: not an IPv6 address") from exc


def audience_with_query(audience: str, target: str) -> str:
    """Return a configured audience without a query as it stands for this request.

    A configured audience that has a query stands for itself; one that has none also accepts
    exactly the query of the request.

    Args:
        audience: A normalised audience, see `audience_of`.
        target: The request target as received, path and query.
    """
    _, question, query = target.partition("?")
    if "?" in audience or not question or not query:
        return audience
    return f"{audience}?{query}"

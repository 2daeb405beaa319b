"""The `aud` of a notification: the webhook URL in one spelling (wire profile §3)."""

from __future__ import annotations

import re

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.url import Url

__all__ = ["audience_of", "audience_with_query"]

_USER = re.compile(r"(\A[^:/?]*://)[^/?]*@")


def audience_of(url: str) -> str:
    """Return a URL without user and fragment, scheme and host in lower case, and no default port.

    Path and query stay to the letter: a webhook may well tell them apart.

    Raises:
        ConfigError: Not an absolute http or https URL.
    """
    try:
        return Url.parse(_USER.sub(r"\1", url.partition("#")[0])).audience
    except InvalidUrlError as exc:
        raise ConfigError(f"audience: {str(exc).removeprefix('URL: ')}") from exc


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

"""What an operator names on a command line may be reached, whatever it is; nothing else is."""

from __future__ import annotations

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.net.destination import DestinationPolicy
from pushkit.url import Url, host_and_port

__all__ = ["named_policy"]


def named_policy(*urls: str) -> DestinationPolicy:
    """Return a policy that lets these URLs' hosts and ports be reached by name.

    Raises:
        ConfigError: One is no absolute http or https URL.
    """
    named = []
    for url in urls:
        try:
            parsed = Url.parse(url)
        except InvalidUrlError as exc:
            raise ConfigError(
                f"found {url[:100]!r}, expected an absolute http or https URL, without user name or"
                " fragment"
            ) from exc
        named.append(host_and_port(parsed.host, parsed.port))
    return DestinationPolicy(named)

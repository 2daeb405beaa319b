"""`UrlDecision`: whether a URL, or an address of its name, may be reached, and why not."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class UrlDecision(StrEnum):
    """The decision on a URL or on an address of its name, with the reason of a refusal."""

    reason: str  # for people; empty if not refused

    def __new__(cls, code: str, reason: str = "") -> Self:
        """Make the member for a code, with its reason."""
        member = str.__new__(cls, code)
        member._value_, member.reason = code, reason
        return member

    # Allowed.
    PUBLIC = "public"
    INTRANET = "intranet"
    NAMED = "named"
    # The URL is refused.
    NOT_A_URL = "not_a_url", "not a URL as it is expected here"
    NOT_HTTPS = "not_https", "expected https, found http"
    PORT = "port", "the port is not among those allowed"
    LITERAL_ADDRESS = "literal_address", "a literal address, expected a host name"
    NOT_A_NAME = "not_a_name", "not a host name"
    SPECIAL_NAME = "special_name", "a local or special-use name, expected a public one"
    OTHER_DOMAIN = "other_domain", "not among the domains that are allowed"
    # The address is refused.
    NOT_PUBLIC = "not_public", "the address is not public"
    OTHER_NETWORK = "other_network", "the address is outside of the networks that are allowed"
    REFUSED_NETWORK = "refused_network", "the address is in a network that is refused"
    OWN_ADDRESS = "own_address", "the address is this machine's own"

    @property
    def is_refusal(self) -> bool:
        """Whether the URL or address may not be reached."""
        return bool(self.reason)

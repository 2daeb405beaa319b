"""What a client's push-notification config says, free of any A2A version.

What a config carries becomes header values of requests, so it is checked where it comes in, however
it is made: a line break in a token would let a client write headers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2: token
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CREDENTIALS = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


_MAX_SCHEMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How the sender authenticates itself to the webhook.

    Raises:
        InvalidPushConfigError: A scheme or the credentials cannot be a header value.
    """

    schemes: tuple[str, ...] = ()
    credentials: str | None = field(default=None, repr=False)
    extra: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.schemes) > _MAX_SCHEMES:
            raise InvalidPushConfigError(
                f"authentication.schemes: {len(self.schemes)}, expected at most {_MAX_SCHEMES}"
            )
        for scheme in self.schemes:
            _check_header_value("authentication scheme", scheme, _SCHEME)
        _check_header_value("authentication.credentials", self.credentials, _CREDENTIALS)

    @property
    def scheme(self) -> str | None:
        """The scheme that is used: the first; 1.0 knows only one."""
        return self.schemes[0] if self.schemes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """Where and how a client wants its notifications.

    The URL is only checked to be there: which destinations are allowed is the policy's question. A
    repr shows neither token nor URL, whose query may be a secret.
    `extra` holds unknown members, written back in the version that they came in (`origin`).

    Raises:
        InvalidPushConfigError: No URL, or a token that cannot be a header value.
    """

    url: str = field(repr=False)
    id: str | None = None
    token: str | None = field(default=None, repr=False)
    authentication: Authentication | None = None
    task_id: str | None = None
    tenant: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    origin: WireVersion | None = None

    def __post_init__(self) -> None:
        if not self.url:
            raise InvalidPushConfigError("url: expected a string that is not empty")
        _check_header_value("token", self.token, _TOKEN)


_MAX_HEADER_VALUE = 4096


def _check_header_value(name: str, value: str | None, allowed: re.Pattern[str]) -> None:
    # RFC 9110 §5.5: CR, LF and NUL in a field value are an injection.
    if value is None:
        return
    if len(value) > _MAX_HEADER_VALUE:
        raise InvalidPushConfigError(
            f"{name}: {len(value)} characters, expected at most {_MAX_HEADER_VALUE}:"
            " it travels in a header"
        )
    if not allowed.fullmatch(value):
        raise InvalidPushConfigError(
            f"{name}: expected visible ASCII characters, without line breaks"
        )

"""The signature base (RFC 9421 §2.5): the text that an HTTP message signature signs.

Components are header fields, with their lines combined, and the derived components of a request.
Components with parameters (`sf`, `key`, `bs`, `req`, `tr`, `name`) are not supported: notifications
need none, and each is another way to read a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pushkit.errors import InvalidSignatureError, InvalidUrlError
from pushkit.url import Url
from pushkit.webhook import Headers

_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1, in lower case


class SignedMessage(NamedTuple):
    """The parts of a request that components are derived from."""

    method: str  # as in the request line
    # The absolute URL. A receiver takes it from its configuration, never from `Host`.
    target_uri: str
    headers: Headers

    @property
    def url(self) -> Url:
        """The URL without its query, which may have any spelling.

        Raises:
            InvalidSignatureError: The target is not a URL.
        """
        try:
            return Url.parse(self.target_uri.partition("?")[0])
        except InvalidUrlError as exc:
            raise InvalidSignatureError(f"a covered component is a part of the URL: {exc}") from exc

    @property
    def query(self) -> str:
        """The query, without its question mark."""
        return self.target_uri.partition("?")[2]


# RFC 9421 §2.2.
_DERIVED: Final[Mapping[str, Callable[[SignedMessage], str]]] = {
    "@method": lambda message: message.method,
    "@target-uri": lambda message: message.target_uri,
    "@authority": lambda message: message.url.authority,
    "@scheme": lambda message: message.url.scheme,
    "@request-target": lambda message: f"{message.url.target}?{message.query}".removesuffix("?"),
    "@path": lambda message: message.url.target,
    "@query": lambda message: f"?{message.query}",
}


def signature_base(message: SignedMessage, components: Sequence[str], parameters: str) -> bytes:
    """Return the signature base over these components, in order.

    `parameters` is the value of `@signature-params`: the signed components and parameters.

    Raises:
        InvalidSignatureError: A component is repeated, unknown, not in lower case, or absent.
        MalformedRequestError: A value cannot be signed.
    """
    if len(set(components)) != len(components):
        raise InvalidSignatureError("the signature covers a component twice")
    lines = [f'"{name}": {_value(message, name)}' for name in components]
    # RFC 9421 §2.5: the signature base ends without a newline.
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("ascii")


def _value(message: SignedMessage, name: str) -> str:
    if derive := _DERIVED.get(name):
        derived = derive(message)
        if not derived.isascii() or not derived.isprintable():
            raise InvalidSignatureError(f"{name}: expected visible ASCII")
        return derived
    if name.startswith("@"):
        raise InvalidSignatureError(f"the signature covers {name[:40]}, which is not supported")
    if not _FIELD_NAME.fullmatch(name):
        raise InvalidSignatureError("a covered component is not a field name in lower case")
    value = message.headers.combined(name)
    if value is None:
        raise InvalidSignatureError(
            f"the signature covers {name[:40]}, which is not in the request"
        )
    return value

"""The signature base (RFC 9421 §2.5): the text that an HTTP message signature is over. Pure.

Covered can be every header field, combined as it stands, and the derived components of a request.
Components with parameters (`sf`, `key`, `bs`, `req`, `tr`, `name`) are not supported: nothing that
a notification must cover needs one, and each is another way to read a field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pushkit.errors import InvalidSignatureError
from pushkit.signing.structured import combined
from pushkit.webhook import Headers

__all__ = ["SignedMessage", "signature_base"]

_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1, in lower case


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedMessage:
    """What components are derived from.

    Attributes:
        method: As it stands in the request line.
        target_uri: The absolute URL: of a request that was received, from the configuration of
            the receiver and never from `Host`.
        headers: The header fields.
    """

    method: str
    target_uri: str
    headers: Headers


def signature_base(message: SignedMessage, components: Sequence[str], parameters: str) -> bytes:
    """Return the signature base.

    Args:
        message: The request.
        components: The names of what is covered, in order.
        parameters: The value of `@signature-params`: components and parameters as they are signed.

    Raises:
        InvalidSignatureError: A component twice, unknown, not in lower case, or not in the request.
        MalformedRequestError: A value that cannot be signed.
    """
    if len(set(components)) != len(components):
        raise InvalidSignatureError("the signature covers a component twice")
    derived = _derived(message)
    lines = [f'"{name}": {_value(message, derived, name)}' for name in components]
    # RFC 9421 §2.5: the signature base ends without a newline.
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("ascii")


def _value(message: SignedMessage, derived: Mapping[str, str], name: str) -> str:
    if name.startswith("@"):
        if name not in derived:
            raise InvalidSignatureError(f"the signature covers {name[:40]}, which is not supported")
        return _printable(name, derived[name])
    if not _FIELD_NAME.fullmatch(name):
        raise InvalidSignatureError("a covered component is not a field name in lower case")
    value = combined(message.headers, name)
    if value is None:
        raise InvalidSignatureError(
            f"the signature covers {name[:40]}, which is not in the request"
        )
    return value


def _printable(name: str, value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise InvalidSignatureError(f"{name}: expected visible ASCII")
    return value


def _derived(message: SignedMessage) -> Mapping[str, str]:
    """Return the derived components of a request (RFC 9421 §2.2)."""
    url = urlsplit(message.target_uri)
    scheme, path = url.scheme.lower(), url.path or "/"
    default_port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return {
        "@method": message.method,
        "@target-uri": message.target_uri,
        "@authority": url.netloc.rpartition("@")[2].lower().removesuffix(default_port),
        "@scheme": scheme,
        "@request-target": f"{path}?{url.query}" if url.query else path,
        "@path": path,
        "@query": f"?{url.query}",
    }

"""The signature base (RFC 9421 §2.5): the text that an HTTP message signature signs.

Components are header fields, with their lines combined, and the derived components of a request.
Components with parameters (`sf`, `key`, `bs`, `req`, `tr`, `name`) are not supported: notifications
need none, and each is another way to read a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pushkit.errors import InvalidSignatureError, InvalidUrlError
from pushkit.url import Url
from pushkit.webhook import Headers

_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1, in lower case


def _url(target_uri: str) -> Url:
    try:
        return Url.parse(target_uri.partition("?")[0])  # the query may have any spelling
    except InvalidUrlError as exc:
        raise InvalidSignatureError(f"a covered component is a part of the URL: {exc}") from exc


def _query(target_uri: str) -> str:
    return target_uri.partition("?")[2]


# RFC 9421 §2.2, from the method and the target URI.
_DERIVED: Final[Mapping[str, Callable[[str, str], str]]] = {
    "@method": lambda method, _: method,
    "@target-uri": lambda _, uri: uri,
    "@authority": lambda _, uri: _url(uri).authority,
    "@scheme": lambda _, uri: _url(uri).scheme,
    "@request-target": lambda _, uri: f"{_url(uri).target}?{_query(uri)}".removesuffix("?"),
    "@path": lambda _, uri: _url(uri).target,
    "@query": lambda _, uri: f"?{_query(uri)}",
}


def signature_base(
    method: str,  # as in the request line
    # The absolute URL. A receiver takes it from its configuration, never from `Host`.
    target_uri: str,
    headers: Headers,
    components: Sequence[str],  # in the order of the signature
    parameters: str,  # the value of `@signature-params`: the signed components and parameters
) -> bytes:
    """Return the signature base over some components of a request.

    Raises:
        InvalidSignatureError: A component is repeated, unknown, not in lower case, or absent.
        MalformedRequestError: A value cannot be signed.
    """
    if len(set(components)) != len(components):
        raise InvalidSignatureError("the signature covers a component twice")
    lines: list[str] = []
    for name in components:
        derive = _DERIVED.get(name)
        value = derive(method, target_uri) if derive else _field_value(headers, name)
        if derive and not (value.isascii() and value.isprintable()):
            raise InvalidSignatureError(f"{name}: expected visible ASCII")
        lines.append(f'"{name}": {value}')
    # RFC 9421 §2.5: the signature base ends without a newline.
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("ascii")


def _field_value(headers: Headers, name: str) -> str:
    if name.startswith("@"):
        raise InvalidSignatureError(f"the signature covers {name[:40]}, which is not supported")
    if not _FIELD_NAME.fullmatch(name):
        raise InvalidSignatureError("a covered component is not a field name in lower case")
    value = headers.combined(name)
    if value is None:
        raise InvalidSignatureError(
            f"the signature covers {name[:40]}, which is not in the request"
        )
    return value

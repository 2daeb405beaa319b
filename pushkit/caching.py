"""HTTP answers that serve a cacheable document: a JWK Set or an agent card."""

from __future__ import annotations

from datetime import timedelta

from pushkit.record import record


@record(frozen=True, slots=True, kw_only=True)
class DocumentResponse:
    """The HTTP answer to a GET for a document."""

    status: int
    headers: dict[str, str]
    body: bytes


def document_response(
    body: bytes, media_type: str, tag: str, max_age: timedelta, if_none_match: str | None
) -> DocumentResponse:
    """Answer a GET for a document (RFC 9110 §13.1.2, RFC 9111 §5.2.2).

    `tag` is the entity tag in quotes, after `W/` if it is weak. `if_none_match` is the request's
    field; the caller joins several with commas.
    """
    headers = {"Cache-Control": f"public, max-age={int(max_age.total_seconds())}", "ETag": tag}
    # RFC 9110 §13.1.2 compares weakly (§8.8.3.2): the prefix W/ makes no difference. A tag contains
    # no quotation mark, so finding it as a substring is enough.
    known = if_none_match or ""
    if tag.removeprefix("W/") in known or known.strip() == "*":
        return DocumentResponse(status=304, headers=headers, body=b"")
    return DocumentResponse(status=200, headers={"Content-Type": media_type, **headers}, body=body)

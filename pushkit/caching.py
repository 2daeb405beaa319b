"""Documents that others may cache, and the answers they are served with."""

from __future__ import annotations

from datetime import timedelta

from pushkit.record import record


@record(frozen=True, slots=True, kw_only=True)
class DocumentResponse:
    """The HTTP answer that a document is served with: a JWK Set, an agent card."""

    status: int
    headers: dict[str, str]
    body: bytes


def document_response(
    body: bytes, media_type: str, tag: str, max_age: timedelta, if_none_match: str | None
) -> DocumentResponse:
    """Answer a GET for a document (RFC 9110 §13.1.2, RFC 9111 §5.2.2).

    Its entity tag is quoted, with `W/` if it is a weak one; several `If-None-Match` of the request
    are joined with commas.
    """
    headers = {"Cache-Control": f"public, max-age={int(max_age.total_seconds())}", "ETag": tag}
    # RFC 9110 §13.1.2 compares weakly (§8.8.3.2): the prefix W/ makes no difference. No tag has a
    # quotation mark in it.
    known = if_none_match or ""
    if tag.removeprefix("W/") in known or known.strip() == "*":
        return DocumentResponse(status=304, headers=headers, body=b"")
    return DocumentResponse(status=200, headers={"Content-Type": media_type, **headers}, body=body)

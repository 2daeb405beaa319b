"""Text from outside, and URLs, as they may stand in a log or an output."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["masked_url", "printable"]

_SHOWN_CHARACTERS: Final = 128
# RFC 3986 §3.2: behind the slashes, or where they are missing in what somebody wrote.
_USER: Final = re.compile(r"(?:\A|(?<=://))[^/?#\s]*@")


def printable(text: str | None) -> str:
    """Return what somebody else wrote as it may stand in a log: on one line, and not too long."""
    return "-" if text is None else ascii(text)[1:-1][:_SHOWN_CHARACTERS]


def masked_url(url: str, *, keep_query: bool = False) -> str:
    """Return a URL without what may be secret in it: user, password, query and fragment.

    Args:
        url: The URL, or what stands for one.
        keep_query: The query is known to hold no secret.
    """
    masked = _USER.sub("***@", url)
    if keep_query:
        return masked
    before, mark, _ = masked.partition("?" if "?" in masked else "#")
    return f"{before}{mark}***" if mark else before

"""Reads an agent card within limits, and each of its signatures.

The entries of `signatures` (A2A 1.0 §4.4.7) are JSON Web Signatures in the general JSON
serialization (RFC 7515 §7.2.1) without their payload. A malformed entry is reported as such, and
the others are still read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.cards.forms import CardForm
from pushkit.errors import InvalidSignatureError, MalformedCardError, MalformedJsonError
from pushkit.keys.jwk import Algorithm
from pushkit.signing.jose import DetachedJws, algorithm_of, media_type, protected_header

# The canonical form that was signed, as a private header parameter (RFC 7515 §4.3). Without it, the
# signature could be presented with a weaker card that has the same bytes in another form.
FORM: Final = "pushkit-form"

MAX_CARD_BYTES: Final = 256 * 1024
MAX_SIGNATURES: Final = 16
# Enough for hundreds of skills. Each value costs some microseconds in every form.
_MAX_VALUES: Final = 10_000

# Every version demands `capabilities`, all of A2A's also `skills`; a signed card has signatures.
_OWN_MEMBERS: Final = frozenset({"capabilities", "signatures", "skills"})
_TYPES: Final = frozenset({"jose", "jose+json", "jwt"})


class CardSignature(NamedTuple):
    """One signature as read from a card, before verification: nothing here is proven."""

    jws: DetachedJws  # protected header and signature
    algorithm: Algorithm  # `alg`
    kid: str | None  # `kid`; a hint at the key
    jku: str | None  # `jku`; a hint at where the key is published, never fetched
    typ: str | None  # `typ`
    form: CardForm | None = None  # the canonical form that it states; most signers state none
    notes: tuple[str, ...] = ()  # unusual but allowed properties of its header


def read_card(card: bytes | Mapping[str, JsonValue]) -> JsonObject:
    """Read a card within the limits, which also apply to a card that is a mapping already.

    Raises:
        MalformedCardError: The card is too large, not a JSON object, nested too deeply, or has
            duplicate members or too many values.
    """
    content = card if isinstance(card, bytes) else _to_json(card)
    if len(content) > MAX_CARD_BYTES:
        raise MalformedCardError(f"the card is too long, expected at most {MAX_CARD_BYTES} bytes")
    # Before each value in the card stands a comma or an opening bracket, so this counts them all.
    if sum(map(content.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise MalformedCardError(f"the card has more than {_MAX_VALUES} values")
    try:
        return read_json_object(content)
    except MalformedJsonError as exc:
        raise MalformedCardError(f"the card: {exc}") from exc


def is_card(content: bytes) -> bool:
    """Return whether this looks like an agent card, and not like another JSON object."""
    try:
        card = read_card(content)
    except MalformedCardError:
        return False
    return isinstance(card.get("name"), str) and not _OWN_MEMBERS.isdisjoint(card)


def read_signatures(card: Mapping[str, JsonValue]) -> list[CardSignature | InvalidSignatureError]:
    """Return a card's signatures in order, with an error in place of each malformed one.

    Raises:
        MalformedCardError: `signatures` is not a list, or has more than 16 entries.
    """
    entries = card.get("signatures")
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise MalformedCardError("`signatures`: expected a list")
    if len(entries) > MAX_SIGNATURES:
        raise MalformedCardError(
            f"`signatures`: found {len(entries)}, expected at most {MAX_SIGNATURES}"
        )
    found: list[CardSignature | InvalidSignatureError] = []
    for entry in entries:
        try:
            found.append(_read_signature(entry))
        except InvalidSignatureError as exc:
            found.append(exc)
    return found


def named_keys(card: bytes | Mapping[str, JsonValue]) -> set[str]:
    """Return the `kid` of each signature that has one. Raises MalformedCardError."""
    entries = read_signatures(read_card(card))
    return {each.kid for each in entries if isinstance(each, CardSignature) and each.kid}


def _to_json(card: Mapping[str, JsonValue]) -> bytes:
    if not isinstance(card, Mapping):
        raise MalformedCardError(
            f"the card: expected bytes or a mapping, found {type(card).__name__}"
        )
    try:
        return json.dumps(dict(card), ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as exc:
        raise MalformedCardError("the card holds something that is not JSON") from exc


def _read_signature(entry: JsonValue) -> CardSignature:
    if not isinstance(entry, dict):
        raise InvalidSignatureError("a signature: expected an object")
    protected, signature = entry.get("protected"), entry.get("signature")
    if not isinstance(protected, str) or not isinstance(signature, str):
        raise InvalidSignatureError("`protected` and `signature`: expected strings")
    header = protected_header(protected)
    unprotected = _unprotected(entry.get("header"), header)
    algorithm = algorithm_of(header)
    kid, jku, typ = (_text(header, name) for name in ("kid", "jku", "typ"))
    if typ is not None and media_type(typ) not in _TYPES:
        raise InvalidSignatureError("`typ`: expected JOSE: this was signed for another purpose")
    form = header.get(FORM)
    if FORM in header and (not isinstance(form, str) or form not in CardForm.__members__.values()):
        raise InvalidSignatureError(f"`{FORM}`: expected one of {', '.join(CardForm)}")
    return CardSignature(
        jws=DetachedJws(protected=protected, signature=signature),
        algorithm=algorithm,
        kid=kid,
        jku=jku,
        typ=typ,
        form=CardForm(form) if isinstance(form, str) else None,
        notes=tuple(_notes(kid, typ, unprotected)),
    )


def _unprotected(value: JsonValue, protected: Mapping[str, JsonValue]) -> JsonObject:
    """Check and return the unprotected header, of which nothing is used."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidSignatureError("`header`: expected an object")
    # RFC 7515 §7.2.1: the names in the two headers must be disjoint.
    if twice := sorted(value.keys() & protected.keys()):
        raise InvalidSignatureError(f"in both headers: {', '.join(map(ascii, twice))}")
    # RFC 7515 §4.1.11 and RFC 7797 §3 require that the first two are protected.
    if value.keys() & {"crit", "b64", FORM}:
        raise InvalidSignatureError(f"`crit`, `b64` and `{FORM}` belong in the protected header")
    return value


def _text(header: Mapping[str, JsonValue], name: str) -> str | None:
    value = header.get(name)
    if isinstance(value, str | None):
        return value
    raise InvalidSignatureError(f"`{name}`: expected a string")


def _notes(kid: str | None, typ: str | None, unprotected: JsonObject) -> list[str]:
    notes = []
    if kid is None:
        notes.append("no `kid`, which A2A 1.0 §8.4.2 requires: every trusted key was tried")
    if typ is None:
        notes.append("no `typ`: the JavaScript SDK refuses this signature")
    if unprotected:
        notes.append("the unprotected header is not signed, and was ignored")
    return notes

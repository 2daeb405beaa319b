"""The agent's card as the gateway serves it: what names the agent names the gateway.

Everything else stays byte for byte. A signed card is verified, changed, and signed anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, read_json_object
from pushkit.cards.origins import CardTrust
from pushkit.cards.signing import sign_card
from pushkit.cards.verify import verify_card
from pushkit.clock import utc_now
from pushkit.errors import (
    CanonicalizationError,
    CardUnavailableError,
    ConfigError,
    InvalidUrlError,
    MalformedCardError,
    MalformedJsonError,
    UnsupportedVersionError,
)
from pushkit.keys.ring import KeyRing
from pushkit.url import Url

_SPACE: Final = re.compile(r"[\s,:]*")
_STRING: Final = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*:)?')  # a colon follows a member's name
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)  # whatever their length
_INTERFACES: Final = ("supportedInterfaces", "additionalInterfaces")
_SPOKEN: Final = ("JSONRPC", "HTTP+JSON")


class CardFacts(NamedTuple):
    """What the gateway has to know of a card."""

    streams: bool
    versions: tuple[WireVersion, ...]  # of A2A, over JSON-RPC
    rest_bases: tuple[str, ...]  # the paths below which the agent speaks HTTP+JSON
    rpc_paths: tuple[str, ...]  # of its JSON-RPC endpoints, without a slash at their end
    is_bare: bool = False  # whether one is the agent's base URL, whose path has no slash at its end


@dataclass(slots=True, kw_only=True)
class CardRewriter:
    """Makes the gateway's card of the agent's."""

    upstream: Url  # the agent's base URL
    public_url: str  # the gateway's, without a slash at its end
    ring: Callable[[], KeyRing]  # returns the keys that sign
    trust: CardTrust | None  # the keys of signed cards; None to refuse them
    # What the gateway serves beside A2A, as members of `capabilities.extensions`.
    extensions: Sequence[JsonObject] = ()

    async def rewritten(self, body: bytes) -> bytes:
        """Return the gateway's card.

        A signed one is not kept for later: by then the agent's key may be revoked, or the gateway
        may sign with another one.

        Raises:
            CardUnavailableError: It is no card; it is signed, and no signature counts; or it has
                no interface that the gateway speaks.
        """
        text, card = _read(body)
        if not card.get("signatures"):
            return self.changed(text, card).encode()
        try:
            card = await self._verified(body)
            del card["signatures"]
            changed = self.changed(json.dumps(card, ensure_ascii=False), card).encode()
            return sign_card(changed, self.ring(), now=utc_now()).content
        except (MalformedCardError, CanonicalizationError) as exc:
            raise CardUnavailableError(f"the agent's card: {exc}") from exc

    async def _verified(self, body: bytes) -> JsonObject:
        origin = f"{self.upstream.scheme}://{self.upstream.authority}"
        if self.trust is None:
            raise CardUnavailableError(
                "the agent's card is signed, and would not verify once it names the gateway: give"
                " --trust with its keys, so that the gateway can verify it and sign its own"
            )
        keys = await self.trust.keys_for(origin, body)
        verdict = verify_card(body, keys, now=utc_now())
        if not verdict.verified:
            raise CardUnavailableError(f"the agent's card: no signature counts: {verdict.reason}")
        return dict(verdict.card)

    def changed(self, text: str, card: JsonObject) -> str:
        """Return the text of a card, or of an answer that holds one, with its values replaced."""
        at, own = _after_space(text, 0), card
        if isinstance(result := card.get("result"), dict):  # it is the result of a JSON-RPC answer
            at, own = _places(text, at)["result"][0], result
        places = _places(text, at)
        edits = self._capabilities(text, at, own, places)
        named = [own.get("url")]
        for name in _INTERFACES:
            for number, interface in enumerate(_list(own.get(name))):
                if not isinstance(interface, dict):
                    continue
                named.append(interface.get("url"))
                if _binding(interface) not in _SPOKEN:
                    edits.append(_left_out(text, *_places(text, places[name][0])[number]))
        urls = [_parsed(each) for each in named if isinstance(each, str)]
        origins = {self.upstream.origin, *(url.origin for url in urls if url is not None)}
        for string in _STRING.finditer(text):
            value = json.loads(string[1])
            if string[2] is None and (instead := self._instead(value, origins)) != value:
                edits.append((*string.span(1), json.dumps(instead, ensure_ascii=False)))
        return _edited(text, edits)

    def _capabilities(
        self, text: str, at: int, own: JsonObject, places: dict[str | int, tuple[int, int]]
    ) -> list[tuple[int, int, str]]:
        """Return the edits that say what the gateway can."""
        edits: list[tuple[int, int, str]] = []
        capabilities, added = own.get("capabilities"), []
        has_some = isinstance(capabilities, dict)
        inner = _places(text, places["capabilities"][0]) if has_some else {}
        if "pushNotifications" in inner:
            edits.append((*inner["pushNotifications"], "true"))
        else:
            added.append('"pushNotifications":true')
        extensions = ",".join(json.dumps(each, separators=(",", ":")) for each in self.extensions)
        listed = capabilities.get("extensions") if isinstance(capabilities, dict) else None
        if isinstance(listed, list) and extensions:
            start = inner["extensions"][0] + 1
            edits.append((start, start, extensions + ("," if listed else "")))
        elif "extensions" in inner and extensions:  # null, as some frameworks write it
            edits.append((*inner["extensions"], f"[{extensions}]"))
        elif extensions:
            added.append(f'"extensions":[{extensions}]')
        members = ",".join(added)
        if has_some and added:
            start = places["capabilities"][0] + 1
            edits.append((start, start, members + ("," if capabilities else "")))
        elif "capabilities" in places and not has_some:
            edits.append((*places["capabilities"], f"{{{members}}}"))
        elif not has_some:
            comma = "," if own else ""
            edits.append((at + 1, at + 1, f'"capabilities":{{{members}}}{comma}'))
        return edits

    def _instead(self, value: str, origins: set[str]) -> str:
        url = _parsed(value)
        if url is None or url.origin not in origins:
            return value
        path = _below(self.upstream.target.partition("?")[0].rstrip("/"), url.target)
        return self.public_url + ("" if path == "/" and not value.endswith("/") else path)


def facts_of(body: bytes, base_path: str) -> CardFacts:
    """Read what the gateway has to know of the agent's card.

    Raises:
        CardUnavailableError: It is no card, or has no interface that the gateway speaks.
    """
    _, card = _read(body)
    capabilities: Any = card.get("capabilities")
    streams = isinstance(capabilities, dict) and capabilities.get("streaming") is True
    interfaces = [
        each for name in _INTERFACES for each in _list(card.get(name)) if isinstance(each, dict)
    ]
    if isinstance(card.get("url"), str):
        # Up to 0.3 the card itself is one.
        interfaces.append(card | {"protocolBinding": card.get("preferredTransport", "JSONRPC")})
    spoken = [each for each in interfaces if _binding(each) in _SPOKEN]
    if interfaces and not spoken:
        names = ", ".join(sorted({str(_binding(each)) for each in interfaces}))
        raise CardUnavailableError(
            f"the agent's card: found interfaces of {names}, expected JSONRPC or HTTP+JSON: the"
            " gateway does not speak gRPC"
        )
    rpc = [each for each in spoken if _binding(each) == "JSONRPC"]
    rest = [each for each in spoken if _binding(each) == "HTTP+JSON"]
    rpc_paths = [_path_of(each) for each in rpc] if spoken else ["/"]
    return CardFacts(
        streams=streams,
        versions=tuple(filter(None, map(_version, rpc))),
        rest_bases=tuple(_below(base_path, _path_of(each)).rstrip("/") for each in rest),
        rpc_paths=tuple(_below(base_path, path).rstrip("/") for path in rpc_paths),
        is_bare=base_path in rpc_paths,
    )


def _binding(interface: JsonObject) -> object:
    return interface.get("protocolBinding", interface.get("transport", "JSONRPC"))


def _version(interface: JsonObject) -> WireVersion | None:
    try:
        return WireVersion.parse(str(interface.get("protocolVersion", "0.3")))
    except UnsupportedVersionError:
        return None


def _path_of(interface: JsonObject) -> str:
    url = _parsed(str(interface.get("url")))
    return url.target.partition("?")[0] if url else "/"


def _below(base_path: str, path: str) -> str:
    """Return the part of a path below the agent's base path; as it is, if it is not below it."""
    return path.removeprefix(base_path) if f"{path}/".startswith(f"{base_path}/") else path


def _read(body: bytes) -> tuple[str, JsonObject]:
    try:
        return body.decode(), read_json_object(body)
    except (MalformedJsonError, UnicodeDecodeError) as exc:
        raise CardUnavailableError(f"the agent's card: {exc}") from exc


def _parsed(text: str) -> Url | None:
    try:
        return Url.parse(text)
    except (InvalidUrlError, ConfigError):
        return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _left_out(text: str, start: int, end: int) -> tuple[int, int, str]:
    """Return the edit that takes an item out of a list, with the comma after or before it."""
    after = re.compile(r"\s*,").match(text, end)
    if after is not None:
        end = after.end()
    elif (before := re.compile(r",\s*\Z").search(text[:start])) is not None:
        start = before.start()
    return start, end, ""


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Return a text with its parts replaced; within a part that goes, nothing else counts."""
    written, last = [], 0
    for start, end, instead in sorted(edits, key=lambda each: (each[0], -each[1])):
        if start >= last:
            written += [text[last:start], instead]
            last = end
    return "".join([*written, text[last:]])


def _places(text: str, at: int) -> dict[str | int, tuple[int, int]]:
    """Return where each member of an object, or item of a list, begins and ends in valid JSON."""
    places: dict[str | int, tuple[int, int]] = {}
    is_object = text[at] == "{"
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        step: str | int = len(places)
        if is_object:
            step, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, at)
        _, end = _DECODER.raw_decode(text, at)
        places[step] = (at, end)
        at = _after_space(text, end)
    return places


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at

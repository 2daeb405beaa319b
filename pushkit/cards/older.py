"""The members of A2A 0.2 and 0.3 in a 1.0 card: what they say in 1.0, and what 1.0 says in them.

a2a-sdk's client maps them to members of 1.0 before it verifies (`parse_agent_card` in
`a2a/client/card_resolver.py`), and its server adds them to a signed card that has an interface for
0.3 (`agent_card_to_dict` in `a2a/server/request_handlers/response_helpers.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.cards.schema import CARD_1_0, CARD_1_0_AND_0_3, Path, find_misfit
from pushkit.errors import CanonicalizationError

# The `type` of a security scheme in 0.3, and its member in 1.0.
_SCHEMES: Final = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_SCHEME_MEMBERS: Final = (
    "description",
    "name",
    "scheme",
    "bearerFormat",
    "oauth2MetadataUrl",
    "openIdConnectUrl",
)
_FLOWS: Final = ("authorizationCode", "clientCredentials", "implicit", "password")
_FLOW_MEMBERS: Final = ("authorizationUrl", "tokenUrl", "refreshUrl", "scopes")
_0_3: Final = re.compile(r"0\.([3-9]|\d\d+)(\.\d+)*")


def is_older(card: Mapping[str, JsonValue]) -> bool:
    """Return whether a card is one of A2A 0.3 or before, which has a `url` and no interfaces."""
    return "url" in card and "supportedInterfaces" not in card


class ReadCard(NamedTuple):
    """A card as a2a-sdk's client reads it."""

    card: JsonObject  # with the members of 1.0; those of other versions that it ignores remain
    # JSON Pointers to members that were made from older ones, and where these are in the card.
    sources: Mapping[str, str]

    def source(self, path: str) -> str:
        """Return where a member is in the card as served, by its JSON Pointer in this one."""
        if not self.sources:
            return path
        steps = path.split("/")
        prefixes = ("/".join(steps[:n]) for n in range(len(steps), 1, -1))
        return next((self.sources[each] for each in prefixes if each in self.sources), path)


def as_client_reads(card: JsonObject) -> ReadCard:
    """Map older members to 1.0 as a2a-sdk's client does before it verifies.

    Raises:
        CanonicalizationError: That client refuses the card; the message names the member.
    """
    if misfit := find_misfit(card, CARD_1_0_AND_0_3):
        raise CanonicalizationError(f"a2a-sdk's client refuses the card: {misfit}")
    found: dict[str, Any] = {**card}
    sources: dict[str, str] = {}
    _map_extended_card(found, sources)
    _map_interfaces(found, sources)
    _map_security(found, sources, ())
    if "skills" in found:
        if found["skills"] is None:
            raise CanonicalizationError("a2a-sdk's client refuses the card: /skills is null")
        found["skills"] = [dict(skill) for skill in found["skills"]]
        for n, skill in enumerate(found["skills"]):
            _map_security(skill, sources, ("skills", n))
    if schemes := found.get("securitySchemes"):
        found["securitySchemes"] = {
            name: _scheme(scheme, sources, ("securitySchemes", name))
            for name, scheme in schemes.items()
        }
    if misfit := find_misfit(found, CARD_1_0):
        raise CanonicalizationError(f"a2a-sdk's client refuses the card: {misfit}")
    return ReadCard(found, sources)


def _map_extended_card(card: dict[str, Any], sources: dict[str, str]) -> None:
    if not card.get("supportsAuthenticatedExtendedCard"):
        return
    capabilities = card.get("capabilities", {})
    if capabilities is None:
        raise CanonicalizationError("a2a-sdk's client refuses the card: /capabilities is null")
    if "extendedAgentCard" not in capabilities:
        del card["supportsAuthenticatedExtendedCard"]
        card["capabilities"] = {**capabilities, "extendedAgentCard": True}
        path = json_pointer("", "capabilities", "extendedAgentCard")
        sources[path] = "/supportsAuthenticatedExtendedCard"


def _map_interfaces(card: dict[str, Any], sources: dict[str, str]) -> None:
    if "supportedInterfaces" in card or not card.get("url"):
        return
    version = card.pop("protocolVersion", "0.3.0")
    main = {
        "url": card.pop("url"),
        "protocolBinding": card.pop("preferredTransport", "JSONRPC"),
        "protocolVersion": version,
    }
    others = [
        {
            "url": other.get("url"),
            "protocolBinding": other.get("transport"),
            "protocolVersion": version,
        }
        for other in card.pop("additionalInterfaces", None) or ()
    ]
    card["supportedInterfaces"] = [main, *others]
    sources["/supportedInterfaces"] = "/url"


def _map_security(message: dict[str, Any], sources: dict[str, str], at: Path) -> None:
    if "securityRequirements" in message or message.get("security") is None:
        return
    message["securityRequirements"] = [
        {"schemes": {name: {"list": scopes} for name, scopes in requirement.items()}}
        for requirement in message.pop("security")
    ]
    path = json_pointer("", *at, "securityRequirements")
    sources[path] = json_pointer("", *at, "security")


def _scheme(scheme: dict[str, Any], sources: dict[str, str], at: Path) -> dict[str, Any]:
    member = _SCHEMES.get(scheme.get("type", ""))
    if member is None:
        return scheme
    inner = {name: value for name, value in scheme.items() if name != "type"}
    if member == "apiKeySecurityScheme" and "in" in inner:
        inner["location"] = inner.pop("in")
    sources[json_pointer("", *at, member)] = json_pointer("", *at)
    return {member: inner}


def compare_copies(card: JsonObject) -> tuple[frozenset[Path], list[Path]]:
    """Compare older members with those that a2a-sdk's server adds to a card for clients of 0.3.

    Returns the paths of those that say what the card's members of 1.0 say, and, if such a client
    would find its `url`, the paths of those that are missing: without `security`, for example, it
    takes it that no scheme is required.
    """
    faithful, missing = set[Path](), list[Path]()
    for path, holder, expected in _copies(card):
        if (name := path[-1]) in holder:
            # Not by ==, to which 1 is True.
            if json.dumps(holder[name], sort_keys=True) == json.dumps(expected, sort_keys=True):
                faithful.add(path)
        elif expected and ("url",) in faithful:
            missing.append(path)
    return frozenset(faithful), missing


def _copies(card: JsonObject) -> Iterator[tuple[Path, JsonObject, JsonValue]]:
    """Return the path of each copy, the object that it belongs to, and its value."""
    interfaces = [i for i in _objects(card.get("supportedInterfaces")) if _is_for_0_3(i)]
    if interfaces:
        main, *others = interfaces
        yield ("url",), card, main.get("url") or ""
        yield ("preferredTransport",), card, main.get("protocolBinding") or ""
        yield ("protocolVersion",), card, main.get("protocolVersion") or "0.3"
        yield (
            ("additionalInterfaces",),
            card,
            [
                {"url": other.get("url") or "", "transport": other.get("protocolBinding") or ""}
                for other in others
            ],
        )
    extended = _object(card.get("capabilities")).get("extendedAgentCard") is True
    yield ("supportsAuthenticatedExtendedCard",), card, extended
    yield ("security",), card, _security(card)
    skills = card.get("skills")
    for n, skill in enumerate(skills if isinstance(skills, list) else ()):
        if isinstance(skill, dict):
            yield ("skills", n, "security"), skill, _security(skill)
    for name, scheme in _object(card.get("securitySchemes")).items():
        holder = dict(_object(scheme))
        if isinstance(flows := holder.get("flows"), dict):  # the server fills in empty values
            holder["flows"] = {kind: _without_empties(flow) for kind, flow in flows.items()}
        for member, value in _members_of_scheme(holder).items():
            yield ("securitySchemes", name, member), holder, value


def _is_for_0_3(interface: JsonObject) -> bool:
    version = interface.get("protocolVersion") or "0.3"
    return isinstance(version, str) and _0_3.fullmatch(version) is not None


def _security(message: JsonObject) -> JsonValue:
    requirements = message.get("securityRequirements")
    if not isinstance(requirements, list):
        return []
    return [
        {
            name: _object(scopes).get("list") or []
            for name, scopes in _object(_object(requirement).get("schemes")).items()
        }
        for requirement in requirements
    ]


def _members_of_scheme(scheme: JsonObject) -> JsonObject:
    for type_, member in _SCHEMES.items():
        if isinstance(inner := scheme.get(member), dict):
            found: JsonObject = {"type": type_, "in": inner.get("location") or ""}
            found |= {name: inner.get(name) or "" for name in _SCHEME_MEMBERS}
            flows = _object(inner.get("flows"))
            found["flows"] = {
                kind: _without_empties({n: v for n, v in flow.items() if n in _FLOW_MEMBERS})
                for kind, flow in flows.items()
                if kind in _FLOWS and isinstance(flow, dict)
            }
            return found
    return {}


def _without_empties(flow: JsonValue) -> JsonValue:
    return {n: v for n, v in flow.items() if v not in ("", {})} if isinstance(flow, dict) else flow


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _objects(value: JsonValue) -> list[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

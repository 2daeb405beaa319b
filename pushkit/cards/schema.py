"""The fields of an agent card, and when each one is present in a canonical form.

A2A 1.0 §8.4.1 canonicalizes by field presence, which only the protocol definition states (§4.4 and
the proto file it is generated from); neither the SDKs nor the JSON Schema do.

The fields of a message follow their kind of presence:

* `required`: always present, even if empty.
* `optional`: explicit presence; present if it was set, whatever its value.
* `oneof`: a member of a one-of; present if it was set.
* `implicit`: a message is present if it was set; any other field is left out at its default.

A field is written `name`, `name[]` for a list of values or `name{}` for a map, then `:bool`,
`:Message` or `:Struct` (free-form JSON) if its values are not strings, then `=default|default`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer, json_type

# A2A 1.0 §4.4, with the field presence of its proto file.
_MESSAGES_1_0: Final = """
AgentCard
    required: name description supportedInterfaces[]:AgentInterface version
    required: capabilities:AgentCapabilities defaultInputModes[] defaultOutputModes[]
    required: skills[]:AgentSkill
    implicit: provider:AgentProvider securitySchemes{}:SecurityScheme
    implicit: securityRequirements[]:SecurityRequirement
    optional: documentationUrl iconUrl
AgentInterface
    required: url protocolBinding protocolVersion
    implicit: tenant
AgentProvider
    required: url organization
AgentCapabilities
    optional: streaming:bool pushNotifications:bool extendedAgentCard:bool
    implicit: extensions[]:AgentExtension
AgentExtension
    implicit: uri description required:bool params:Struct
AgentSkill
    required: id name description tags[]
    implicit: examples[] inputModes[] outputModes[] securityRequirements[]:SecurityRequirement
SecurityRequirement
    implicit: schemes{}:StringList
StringList
    implicit: list[]
SecurityScheme
    oneof: apiKeySecurityScheme:APIKeySecurityScheme httpAuthSecurityScheme:HTTPAuthSecurityScheme
    oneof: oauth2SecurityScheme:OAuth2SecurityScheme
    oneof: openIdConnectSecurityScheme:OpenIdConnectSecurityScheme
    oneof: mtlsSecurityScheme:MutualTlsSecurityScheme
APIKeySecurityScheme
    implicit: description
    required: location name
HTTPAuthSecurityScheme
    implicit: description bearerFormat
    required: scheme
OAuth2SecurityScheme
    implicit: description oauth2MetadataUrl
    required: flows:OAuthFlows
OpenIdConnectSecurityScheme
    implicit: description
    required: openIdConnectUrl
MutualTlsSecurityScheme
    implicit: description
OAuthFlows
    oneof: authorizationCode:AuthorizationCodeOAuthFlow
    oneof: clientCredentials:ClientCredentialsOAuthFlow implicit:ImplicitOAuthFlow
    oneof: password:PasswordOAuthFlow deviceCode:DeviceCodeOAuthFlow
AuthorizationCodeOAuthFlow
    required: authorizationUrl tokenUrl scopes{}
    implicit: refreshUrl pkceRequired:bool
ClientCredentialsOAuthFlow
    required: tokenUrl scopes{}
    implicit: refreshUrl
ImplicitOAuthFlow
    implicit: authorizationUrl refreshUrl scopes{}
PasswordOAuthFlow
    implicit: tokenUrl refreshUrl scopes{}
DeviceCodeOAuthFlow
    required: deviceAuthorizationUrl tokenUrl scopes{}
    implicit: refreshUrl
"""

# A2A 0.3 §5.5, as in the Python SDK's model: every field is optional, only None means absent, and
# its signatures leave out defaults. Flows and security schemes are one message each here, with the
# fields of all their kinds.
_MESSAGES_0_3: Final = """
AgentCard
    optional: protocolVersion=0.3.0 name description url preferredTransport=JSONRPC
    optional: additionalInterfaces[]:AgentInterface iconUrl provider:AgentProvider version
    optional: documentationUrl capabilities:AgentCapabilities securitySchemes{}:SecurityScheme
    optional: security[]:Struct defaultInputModes[] defaultOutputModes[] skills[]:AgentSkill
    optional: supportsAuthenticatedExtendedCard:bool
AgentInterface
    optional: url transport
AgentProvider
    optional: url organization
AgentCapabilities
    optional: streaming:bool pushNotifications:bool stateTransitionHistory:bool
    optional: extensions[]:AgentExtension
AgentExtension
    optional: uri description required:bool params:Struct
AgentSkill
    optional: id name description tags[] examples[] inputModes[] outputModes[] security[]:Struct
SecurityScheme
    optional: type=apiKey|http|oauth2|openIdConnect|mutualTLS description in name scheme
    optional: bearerFormat flows:OAuthFlows oauth2MetadataUrl openIdConnectUrl
OAuthFlows
    optional: authorizationCode:OAuthFlow clientCredentials:OAuthFlow implicit:OAuthFlow
    optional: password:OAuthFlow
OAuthFlow
    optional: authorizationUrl tokenUrl refreshUrl scopes{}
"""

_SHOWN_CHARACTERS: Final = 80

# Members of A2A 0.1 and AgentVault cards that their clients act on.
_OLDER_MEMBERS: Final = """
    authentication authSchemes agentProvider humanReadableId schemaVersion agentVersion
    privacyPolicyUrl termsOfServiceUrl
"""


class Presence(Enum):
    """The kind of presence of a field; see the module's docstring."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    ONEOF = "oneof"
    MESSAGE = "message"
    IMPLICIT = "implicit"


class Container(Enum):
    """How many values a field holds."""

    ONE = ""
    LIST = "[]"
    MAP = "{}"


class Field(NamedTuple):
    """A field of a message."""

    presence: Presence
    empty: JsonValue  # the default of its type, which means the same as absence
    element: JsonValue  # the default of the type of its values
    container: Container = Container.ONE
    message: str | None = None  # the message type of a value; None for a scalar or free-form value
    struct: bool = False  # free-form JSON (`google.protobuf.Struct`)
    # Values that the 0.3 model treats as defaults, and leaves out of what it signs.
    defaults: tuple[str, ...] = ()

    def is_empty(self, value: JsonValue) -> bool:
        """Return whether a value is the default of the field's type.

        An empty value of another type is not: for the JavaScript SDK, `{}` is true as a boolean,
        and `false` the text "false" as a string.
        """
        return type(value) is type(self.empty) and value == self.empty


Path: TypeAlias = tuple[str | int, ...]
"""The names and indices from the card to a value in it."""
Schema: TypeAlias = Mapping[str, Mapping[str, Field]]

_FIELD: Final = re.compile(r"(\w+)(\[\]|{}|)(?::(\w+))?(?:=(\S+))?")


def _field(presence: Presence, container: Container, type_: str, defaults: str) -> Field:
    is_object = type_ not in ("", "bool")
    if presence is Presence.IMPLICIT and container is Container.ONE and is_object:
        presence = Presence.MESSAGE
    element: JsonValue = {} if is_object else False if type_ == "bool" else ""
    empties: Mapping[Container, JsonValue] = {
        Container.ONE: element,
        Container.LIST: [],
        Container.MAP: {},
    }
    return Field(
        presence=presence,
        empty=empties[container],
        element=element,
        container=container,
        message=type_ if is_object and type_ != "Struct" else None,
        struct=type_ == "Struct",
        defaults=tuple(filter(None, defaults.split("|"))),
    )


def _schema(text: str) -> Schema:
    schema: dict[str, dict[str, Field]] = {}
    message = ""
    for line in text.strip().splitlines():
        presence, colon, fields = line.strip().partition(": ")
        if not colon:
            schema[message := presence] = {}
        for name, container, type_, defaults in _FIELD.findall(fields):
            schema[message][name] = _field(
                Presence(presence), Container(container), type_, defaults
            )
    return schema


CARD_1_0: Final = _schema(_MESSAGES_1_0)
CARD_0_3: Final = _schema(_MESSAGES_0_3)
CARD_1_0_AND_0_3: Final = {
    name: {**CARD_1_0.get(name, {}), **CARD_0_3.get(name, {})} for name in {*CARD_1_0, *CARD_0_3}
}


def find_misfit(
    value: JsonObject, schema: Schema, message: str = "AgentCard", path: Path = ()
) -> str | None:
    """Return where the type of a value is not that of its field, and what was expected.

    Members that the schema does not have, and null, are no misfits. None if there is no misfit.
    """
    fields = schema[message]
    chosen = [
        n for n, f in fields.items() if f.presence is Presence.ONEOF and value.get(n) is not None
    ]
    if len(chosen) > 1:
        return f"{_shown(path)}: found {' and '.join(chosen)}, expected one of them"
    for name, child in value.items():
        field = fields.get(name)
        if field is None or child is None:
            continue
        if not isinstance(child, type(field.empty)):
            return _misfit((*path, name), child, field.empty)
        for at, element in _elements(field, child, (*path, name)):
            if not isinstance(element, type(field.element)):
                return _misfit(at, element, field.element)
            if field.message is not None and isinstance(element, dict):
                found = find_misfit(element, schema, field.message, at)
                if found is not None:
                    return found
    return None


def _elements(field: Field, value: JsonValue, path: Path) -> Iterable[tuple[Path, JsonValue]]:
    if field.container is Container.LIST and isinstance(value, list):
        return (((*path, n), element) for n, element in enumerate(value))
    if field.container is Container.MAP and isinstance(value, dict):
        return (((*path, name), element) for name, element in value.items())
    return [(path, value)]


def _misfit(path: Path, found: JsonValue, expected: JsonValue) -> str:
    return f"{_shown(path)}: found {json_type(found)}, expected {json_type(expected)}"


def _shown(path: Path) -> str:
    return ascii(json_pointer("", *path))[1:-1][:_SHOWN_CHARACTERS]


# No parser reads a longer name as a field of at most 33 letters. To normalise a name with n
# combining marks takes n² steps: half a minute for one that fills a card.
_LONGEST_SPELLING: Final = 256


def _folded(name: str) -> str:
    """Return one spelling for all the names that some lenient parser treats as the same.

    Go folds cases (the long s is s, the Kelvin sign k), Java compares upper, then lower cases (both
    Turkish i are i), some parsers normalise, and in C a name ends at its NUL. Compatibility forms
    are normalised first, because only the result has cases.
    """
    name, _, _ = name.partition("\0")
    if len(name) > _LONGEST_SPELLING:
        return name
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    return folded.replace("\u0307", "").replace("_", "")


@cache
def _known_names(message: str) -> frozenset[str]:
    if message not in CARD_1_0:
        return frozenset()
    tables = (CARD_1_0, CARD_0_3, {"AgentCard": _OLDER_MEMBERS.split()})
    return frozenset(_folded(name) for table in tables for name in table.get(message, ()))


def camel_case(name: str) -> str:
    """Return the JSON name of a field by its name in the proto file."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def is_read_by_a2a(message: str, name: str) -> bool:
    """Return whether some A2A software acts on a member that the 1.0 message does not have.

    These are members of older versions, proto names (`supported_interfaces`), which protobuf's JSON
    parsers accept, and names in another case (`URL`), which Go's parser accepts. In 0.3, a member
    of a security requirement is the name of a scheme.
    """
    return message == "SecurityRequirement" or _folded(name) in _known_names(message)

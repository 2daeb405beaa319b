"""The fields of an agent card, and what the absence of each one means.

A2A 1.0 §8.4.1 canonicalizes by field presence, which only the protocol definition knows (§4.4 and
the proto file it is generated from); neither an SDK nor the JSON Schema does.

A field is written `name: [presence] [container] type [=default|default]`:

* `required`: always there, also when empty.
* `optional`: explicit presence; there when it was set, whatever its value.
* `oneof`: a member of a one-of; there when it was set.
* none: a message is there when it was set; anything else is left out when it has its default.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

__all__ = ["CARD_0_3", "CARD_1_0", "Container", "Field", "Presence", "Schema", "is_read_by_a2a"]

# A2A 1.0 §4.4, with the field presence of its proto file.
_MESSAGES_1_0: Final = """
AgentCard
    name: required string
    description: required string
    supportedInterfaces: required list AgentInterface
    provider: AgentProvider
    version: required string
    documentationUrl: optional string
    capabilities: required AgentCapabilities
    securitySchemes: map SecurityScheme
    securityRequirements: list SecurityRequirement
    defaultInputModes: required list string
    defaultOutputModes: required list string
    skills: required list AgentSkill
    iconUrl: optional string
AgentInterface
    url: required string
    protocolBinding: required string
    tenant: string
    protocolVersion: required string
AgentProvider
    url: required string
    organization: required string
AgentCapabilities
    streaming: optional bool
    pushNotifications: optional bool
    extensions: list AgentExtension
    extendedAgentCard: optional bool
AgentExtension
    uri: string
    description: string
    required: bool
    params: Struct
AgentSkill
    id: required string
    name: required string
    description: required string
    tags: required list string
    examples: list string
    inputModes: list string
    outputModes: list string
    securityRequirements: list SecurityRequirement
SecurityRequirement
    schemes: map StringList
StringList
    list: list string
SecurityScheme
    apiKeySecurityScheme: oneof APIKeySecurityScheme
    httpAuthSecurityScheme: oneof HTTPAuthSecurityScheme
    oauth2SecurityScheme: oneof OAuth2SecurityScheme
    openIdConnectSecurityScheme: oneof OpenIdConnectSecurityScheme
    mtlsSecurityScheme: oneof MutualTlsSecurityScheme
APIKeySecurityScheme
    description: string
    location: required string
    name: required string
HTTPAuthSecurityScheme
    description: string
    scheme: required string
    bearerFormat: string
OAuth2SecurityScheme
    description: string
    flows: required OAuthFlows
    oauth2MetadataUrl: string
OpenIdConnectSecurityScheme
    description: string
    openIdConnectUrl: required string
MutualTlsSecurityScheme
    description: string
OAuthFlows
    authorizationCode: oneof AuthorizationCodeOAuthFlow
    clientCredentials: oneof ClientCredentialsOAuthFlow
    implicit: oneof ImplicitOAuthFlow
    password: oneof PasswordOAuthFlow
    deviceCode: oneof DeviceCodeOAuthFlow
AuthorizationCodeOAuthFlow
    authorizationUrl: required string
    tokenUrl: required string
    refreshUrl: string
    scopes: required map string
    pkceRequired: bool
ClientCredentialsOAuthFlow
    tokenUrl: required string
    refreshUrl: string
    scopes: required map string
ImplicitOAuthFlow
    authorizationUrl: string
    refreshUrl: string
    scopes: map string
PasswordOAuthFlow
    tokenUrl: string
    refreshUrl: string
    scopes: map string
DeviceCodeOAuthFlow
    deviceAuthorizationUrl: required string
    tokenUrl: required string
    refreshUrl: string
    scopes: required map string
"""

# A2A 0.3 §5.5, as the Python SDK's model has it: every field is optional there, None is the only
# absence, and what is written `=a|b` are defaults, which its signatures leave out. Flows and
# security schemes are one message each, with the fields of all kinds.
_MESSAGES_0_3: Final = """
AgentCard
    protocolVersion: string =0.3.0
    name: string
    description: string
    url: string
    preferredTransport: string =JSONRPC
    additionalInterfaces: list AgentInterface
    iconUrl: string
    provider: AgentProvider
    version: string
    documentationUrl: string
    capabilities: AgentCapabilities
    securitySchemes: map SecurityScheme
    security: list Struct
    defaultInputModes: list string
    defaultOutputModes: list string
    skills: list AgentSkill
    supportsAuthenticatedExtendedCard: bool
AgentInterface
    url: string
    transport: string
AgentProvider
    url: string
    organization: string
AgentCapabilities
    streaming: bool
    pushNotifications: bool
    stateTransitionHistory: bool
    extensions: list AgentExtension
AgentExtension
    uri: string
    description: string
    required: bool
    params: Struct
AgentSkill
    id: string
    name: string
    description: string
    tags: list string
    examples: list string
    inputModes: list string
    outputModes: list string
    security: list Struct
SecurityScheme
    type: string =apiKey|http|oauth2|openIdConnect|mutualTLS
    description: string
    in: string
    name: string
    scheme: string
    bearerFormat: string
    flows: OAuthFlows
    oauth2MetadataUrl: string
    openIdConnectUrl: string
OAuthFlows
    authorizationCode: OAuthFlow
    clientCredentials: OAuthFlow
    implicit: OAuthFlow
    password: OAuthFlow
OAuthFlow
    authorizationUrl: string
    tokenUrl: string
    refreshUrl: string
    scopes: map string
"""

# Members of cards of A2A 0.1 and of AgentVault, which their clients act upon.
_OLDER_MEMBERS: Final = """
    authentication authSchemes agentProvider humanReadableId schemaVersion agentVersion
    privacyPolicyUrl termsOfServiceUrl
"""


class Presence(Enum):
    """When a field is part of the canonical form."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    ONEOF = "oneof"
    MESSAGE = "message"
    IMPLICIT = "implicit"


class Container(Enum):
    """How many values a field holds."""

    ONE = "one"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message.

    Attributes:
        presence: When it counts as set.
        container: One value, a list or a map of them.
        message: The message type of a value; None for a scalar or free-form value.
        struct: Free-form JSON (`google.protobuf.Struct`).
        defaults: Values that the 0.3 model takes for granted, and leaves out of what it signs.
    """

    presence: Presence
    container: Container = Container.ONE
    message: str | None = None
    struct: bool = False
    defaults: tuple[str, ...] = ()


Schema: TypeAlias = Mapping[str, Mapping[str, Field]]


def _field(text: str, unmarked: Presence | None) -> Field:
    text, _, defaults = text.partition(" =")
    *words, type_ = text.split()
    container = Container.LIST if "list" in words else Container.ONE
    container = Container.MAP if "map" in words else container
    is_scalar = type_ in ("string", "bool")
    is_message = container is Container.ONE and not is_scalar
    presence = unmarked or (Presence.MESSAGE if is_message else Presence.IMPLICIT)
    if words and words[0] in ("required", "optional", "oneof"):
        presence = Presence(words[0])
    return Field(
        presence=presence,
        container=container,
        message=None if is_scalar or type_ == "Struct" else type_,
        struct=type_ == "Struct",
        defaults=tuple(defaults.split("|")) if defaults else (),
    )


def _schema(text: str, unmarked: Presence | None = None) -> Schema:
    schema: dict[str, dict[str, Field]] = {}
    message = ""
    for line in text.strip().splitlines():
        name, colon, field = line.strip().partition(": ")
        if colon:
            schema[message][name] = _field(field, unmarked)
        else:
            schema[message := name] = {}
    return schema


CARD_1_0: Final = _schema(_MESSAGES_1_0)
CARD_0_3: Final = _schema(_MESSAGES_0_3, Presence.OPTIONAL)


def _folded(name: str) -> str:
    """Return what any parser that is lenient with names would take a name for.

    Go folds by case (the long s is s, the Kelvin sign k), Java compares upper, then lower cases
    (both Turkish i are i), and some normalise; for C a name ends at its NUL. Compatible forms
    first, for only these have cases.
    """
    name, _, _ = name.partition("\0")
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    return folded.replace("\u0307", "").replace("_", "")


_OLDER: Final = {"AgentCard": _OLDER_MEMBERS.split()}
_READ: Final = {
    message: frozenset(
        _folded(name) for table in (CARD_1_0, CARD_0_3, _OLDER) for name in table.get(message, ())
    )
    for message in CARD_1_0
}


def is_read_by_a2a(message: str, name: str) -> bool:
    """Say whether some A2A software acts on a member that the 1.0 message does not have.

    Members of older versions; proto names (`supported_interfaces`), which protobuf's JSON parsers
    take for the field; and other cases (`URL`), which Go's does. A key directly in a security
    requirement is the name of a scheme, in 0.3.
    """
    return message == "SecurityRequirement" or _folded(name) in _READ.get(message, ())

"""The fields of an agent card, and what the absence of each one means.

A2A 1.0 §8.4.1 canonicalizes by field presence, which only the protocol definition knows (§4.4 and
the proto file it is generated from); neither an SDK nor the JSON Schema does. The 0.3 table is that
of the Python SDK's model, whose defaults its signatures leave out.

A field is written `[presence] [container] type`:

* `required`: always there, also when empty.
* `optional`: explicit presence; there when it was set, whatever its value.
* `oneof`: a member of a one-of; there when it was set.
* none: a message is there when it was set; anything else is left out when it has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

__all__ = ["CARD_0_3", "CARD_1_0", "Container", "Field", "Presence", "Schema", "is_read_by_a2a"]


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

_PRESENCES: Final = {"required": Presence.REQUIRED, "optional": Presence.OPTIONAL}
_SCALARS: Final = frozenset({"string", "bool"})

_TEXT_1_0: Final = {
    "AgentCard": {
        "name": "required string",
        "description": "required string",
        "supportedInterfaces": "required list AgentInterface",
        "provider": "AgentProvider",
        "version": "required string",
        "documentationUrl": "optional string",
        "capabilities": "required AgentCapabilities",
        "securitySchemes": "map SecurityScheme",
        "securityRequirements": "list SecurityRequirement",
        "defaultInputModes": "required list string",
        "defaultOutputModes": "required list string",
        "skills": "required list AgentSkill",
        "iconUrl": "optional string",
    },
    "AgentInterface": {
        "url": "required string",
        "protocolBinding": "required string",
        "tenant": "string",
        "protocolVersion": "required string",
    },
    "AgentProvider": {"url": "required string", "organization": "required string"},
    "AgentCapabilities": {
        "streaming": "optional bool",
        "pushNotifications": "optional bool",
        "extensions": "list AgentExtension",
        "extendedAgentCard": "optional bool",
    },
    "AgentExtension": {
        "uri": "string",
        "description": "string",
        "required": "bool",
        "params": "Struct",
    },
    "AgentSkill": {
        "id": "required string",
        "name": "required string",
        "description": "required string",
        "tags": "required list string",
        "examples": "list string",
        "inputModes": "list string",
        "outputModes": "list string",
        "securityRequirements": "list SecurityRequirement",
    },
    "SecurityRequirement": {"schemes": "map StringList"},
    "StringList": {"list": "list string"},
    "SecurityScheme": {
        "apiKeySecurityScheme": "oneof APIKeySecurityScheme",
        "httpAuthSecurityScheme": "oneof HTTPAuthSecurityScheme",
        "oauth2SecurityScheme": "oneof OAuth2SecurityScheme",
        "openIdConnectSecurityScheme": "oneof OpenIdConnectSecurityScheme",
        "mtlsSecurityScheme": "oneof MutualTlsSecurityScheme",
    },
    "APIKeySecurityScheme": {
        "description": "string",
        "location": "required string",
        "name": "required string",
    },
    "HTTPAuthSecurityScheme": {
        "description": "string",
        "scheme": "required string",
        "bearerFormat": "string",
    },
    "OAuth2SecurityScheme": {
        "description": "string",
        "flows": "required OAuthFlows",
        "oauth2MetadataUrl": "string",
    },
    "OpenIdConnectSecurityScheme": {
        "description": "string",
        "openIdConnectUrl": "required string",
    },
    "MutualTlsSecurityScheme": {"description": "string"},
    "OAuthFlows": {
        "authorizationCode": "oneof AuthorizationCodeOAuthFlow",
        "clientCredentials": "oneof ClientCredentialsOAuthFlow",
        "implicit": "oneof ImplicitOAuthFlow",
        "password": "oneof PasswordOAuthFlow",
        "deviceCode": "oneof DeviceCodeOAuthFlow",
    },
    "AuthorizationCodeOAuthFlow": {
        "authorizationUrl": "required string",
        "tokenUrl": "required string",
        "refreshUrl": "string",
        "scopes": "required map string",
        "pkceRequired": "bool",
    },
    "ClientCredentialsOAuthFlow": {
        "tokenUrl": "required string",
        "refreshUrl": "string",
        "scopes": "required map string",
    },
    "ImplicitOAuthFlow": {
        "authorizationUrl": "string",
        "refreshUrl": "string",
        "scopes": "map string",
    },
    "PasswordOAuthFlow": {"tokenUrl": "string", "refreshUrl": "string", "scopes": "map string"},
    "DeviceCodeOAuthFlow": {
        "deviceAuthorizationUrl": "required string",
        "tokenUrl": "required string",
        "refreshUrl": "string",
        "scopes": "required map string",
    },
}

# A2A 0.3 §5.5. Every field without default is `optional` in the model: None is the only absence.
# `=a|b` are values that are left out. Flows and security schemes are one message each, with the
# fields of all kinds.
_TEXT_0_3: Final = {
    "AgentCard": {
        "protocolVersion": "optional string =0.3.0",
        "name": "optional string",
        "description": "optional string",
        "url": "optional string",
        "preferredTransport": "optional string =JSONRPC",
        "additionalInterfaces": "optional list AgentInterface",
        "iconUrl": "optional string",
        "provider": "optional AgentProvider",
        "version": "optional string",
        "documentationUrl": "optional string",
        "capabilities": "optional AgentCapabilities",
        "securitySchemes": "optional map SecurityScheme",
        "security": "optional list Struct",
        "defaultInputModes": "optional list string",
        "defaultOutputModes": "optional list string",
        "skills": "optional list AgentSkill",
        "supportsAuthenticatedExtendedCard": "optional bool",
    },
    "AgentInterface": {"url": "optional string", "transport": "optional string"},
    "AgentProvider": {"url": "optional string", "organization": "optional string"},
    "AgentCapabilities": {
        "streaming": "optional bool",
        "pushNotifications": "optional bool",
        "stateTransitionHistory": "optional bool",
        "extensions": "optional list AgentExtension",
    },
    "AgentExtension": {
        "uri": "optional string",
        "description": "optional string",
        "required": "optional bool",
        "params": "optional Struct",
    },
    "AgentSkill": {
        "id": "optional string",
        "name": "optional string",
        "description": "optional string",
        "tags": "optional list string",
        "examples": "optional list string",
        "inputModes": "optional list string",
        "outputModes": "optional list string",
        "security": "optional list Struct",
    },
    "SecurityScheme": {
        "type": "optional string =apiKey|http|oauth2|openIdConnect|mutualTLS",
        "description": "optional string",
        "in": "optional string",
        "name": "optional string",
        "scheme": "optional string",
        "bearerFormat": "optional string",
        "flows": "optional OAuthFlows",
        "oauth2MetadataUrl": "optional string",
        "openIdConnectUrl": "optional string",
    },
    "OAuthFlows": {
        "authorizationCode": "optional OAuthFlow",
        "clientCredentials": "optional OAuthFlow",
        "implicit": "optional OAuthFlow",
        "password": "optional OAuthFlow",
    },
    "OAuthFlow": {
        "authorizationUrl": "optional string",
        "tokenUrl": "optional string",
        "refreshUrl": "optional string",
        "scopes": "optional map string",
    },
}

# Members of cards of A2A 0.1 and of AgentVault, which their clients act upon.
_OLDER: Final = {
    "AgentCard": {
        "authentication",
        "authSchemes",
        "agentProvider",
        "humanReadableId",
        "schemaVersion",
        "agentVersion",
        "privacyPolicyUrl",
        "termsOfServiceUrl",
    }
}


def _field(text: str) -> Field:
    text, _, defaults = text.partition(" =")
    *words, type_ = text.split()
    container = Container.LIST if "list" in words else Container.ONE
    container = Container.MAP if "map" in words else container
    is_message = container is Container.ONE and type_ not in _SCALARS
    presence = Presence.MESSAGE if is_message else Presence.IMPLICIT
    if words and words[0] == "oneof":
        presence = Presence.ONEOF
    elif words:
        presence = _PRESENCES.get(words[0], presence)
    return Field(
        presence=presence,
        container=container,
        message=None if type_ in _SCALARS or type_ == "Struct" else type_,
        struct=type_ == "Struct",
        defaults=tuple(defaults.split("|")) if defaults else (),
    )


def _schema(text: Mapping[str, Mapping[str, str]]) -> Schema:
    return {
        message: {name: _field(line) for name, line in fields.items()}
        for message, fields in text.items()
    }


CARD_1_0: Final = _schema(_TEXT_1_0)
CARD_0_3: Final = _schema(_TEXT_0_3)


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


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

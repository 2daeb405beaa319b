"""The messages of an agent card, field by field, as `pushkit.cards.fields` reads them.

A field is written `[presence] [container] type`:

* `required`: always there, also when empty.
* `optional`: explicit presence; there when it was set, whatever its value.
* `oneof`: a member of a one-of; there when it was set.
* none: a message is there when it was set; anything else is left out when it has its default.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MESSAGES_0_3", "MESSAGES_1_0", "OLDER_MEMBERS"]

# A2A 1.0 §4.4, with the field presence of its proto file.
MESSAGES_1_0: Final = {
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
MESSAGES_0_3: Final = {
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
OLDER_MEMBERS: Final = {
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

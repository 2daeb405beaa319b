"""AgentVault's A2A profile 0.2: what it has another way than any version of A2A."""

from pushkit.a2a.agentvault.card import AuthScheme, parse_auth_schemes
from pushkit.a2a.agentvault.events import AGENTVAULT

__all__ = ["AGENTVAULT", "AuthScheme", "parse_auth_schemes"]

"""What `expect()` mints and stores: a token, what it stands for, and the config for the agent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.a2a import Authentication, PushConfig, WireVersion, format_push_config
from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.signing.token import hash_token
from pushkit.storage import Script
from receiver.credentials import mint_authentication, mint_token
from receiver.expected import ExpectedStore, Registration
from receiver.trust import TrustedSender

__all__ = ["Expectation", "Minted", "hand_out", "mint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What `expect()` hands out.

    Attributes:
        sender: The agent that may use it.
        config: The push config for that agent, with URL and token.
        version: The A2A version that it is written in.
    """

    sender: str
    config: PushConfig
    version: WireVersion

    def as_json(self) -> JsonObject:
        """Return the config object as this A2A version writes it."""
        return format_push_config(self.config, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minted:
    """A token that is not stored yet.

    Attributes:
        token: The token itself: it is handed out, and stored as a hash only.
        authentication: The credentials beside it, if any.
        registration: What is stored.
        version: The A2A version of the agent.
    """

    token: str
    authentication: Authentication | None
    registration: Registration
    version: WireVersion


def mint(
    sender: TrustedSender,
    *,
    task_id: str | None,
    version: WireVersion | str,
    expires_in: timedelta | None,
    authentication: str | None,
    now: datetime,
) -> Minted:
    """Mint a token for a sender.

    Raises:
        ConfigError: No such version or scheme, a version whose tokens need their task, or no time
            in which it is good.
    """
    if expires_in is not None and expires_in <= timedelta(0):
        raise ConfigError(f"expires_in: found {expires_in}, expected more than zero")
    wire_version = WireVersion.parse(str(version))
    if wire_version is WireVersion.AGENTVAULT_0_2 and task_id is None:
        # Its config is a URL: what it sends can only be told by its task.
        raise ConfigError("task_id: expected one, since AgentVault's config carries no token")
    token = mint_token()
    credentials = mint_authentication(authentication) if authentication else None
    registration = Registration(
        sender=sender.name,
        expectation=mint_token(),
        token_sha256=hash_token(token),
        credentials_sha256=credentials.sha256 if credentials else None,
        task_id=task_id,
        created_at=now,
        expires_at=None if expires_in is None else now + expires_in,
    )
    return Minted(
        token=token,
        authentication=credentials.authentication if credentials else None,
        registration=registration,
        version=wire_version,
    )


def hand_out(
    store: ExpectedStore, minted: Minted, *, url: str, replaces: str | None, overlap: timedelta
) -> Script[Expectation]:
    """Store what was minted, and return what to give to the agent.

    Args:
        store: Where it is expected from now on.
        minted: The token.
        url: Where the agent posts to.
        replaces: A token that was handed out before: the new one stands for the same task.
        overlap: For how long the replaced token is good beside the new one.

    Raises:
        ConfigError: The token to replace is none that is good.
    """
    task_id = minted.registration.task_id
    if replaces is None:
        yield from store.register(minted.registration)
    else:
        old = hash_token(replaces)
        task_id = yield from store.replace(old, minted.registration, overlap=overlap)
    config = PushConfig(
        url=url, token=minted.token, task_id=task_id, authentication=minted.authentication
    )
    return Expectation(sender=minted.registration.sender, config=config, version=minted.version)

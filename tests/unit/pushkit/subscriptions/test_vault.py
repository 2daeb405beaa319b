from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pushkit.a2a import Authentication, PushConfig, WireVersion
from pushkit.errors import (
    InvalidPushConfigError,
    SealedSecretError,
    SecretKeyMissingError,
)
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import BODY, CREDENTIALS, TOKEN, Vault
from pushkit.subscriptions.model import (
    Profile,
    StoredSubscription,
    Subscription,
    SubscriptionKey,
)
from pushkit.subscriptions.store import open_subscription, seal_secrets

KEY = SubscriptionKey(tenant="acme", task_id="task-1", owner="alice", config_id="config-1")
URL = "https://client.example.com/hook"
CONFIG = PushConfig(
    url=URL,
    id="config-1",
    token="canary-token",
    authentication=Authentication(schemes=("Bearer",), credentials="canary credentials"),
)
KEYS = SecretKeys.generate()
VAULT = Vault(KEYS)


def stored(
    secrets: tuple[str | None, str | None], key: SubscriptionKey = KEY, url: str = URL
) -> StoredSubscription:
    subscription = Subscription(
        id="sub_1",
        key=key,
        version=WireVersion.V1_0,
        config=PushConfig(
            url=url, id=key.config_id, authentication=Authentication(schemes=("Bearer",))
        ),
        origin="https://client.example.com:443",
        profile=Profile.STANDARD,
        last_seq=0,
        active=True,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    token, credentials = secrets
    return StoredSubscription(subscription=subscription, token=token, credentials=credentials)


def test_secrets_sealed_for_a_row_open_for_an_attempt() -> None:
    secrets = seal_secrets(VAULT, KEY, CONFIG)
    assert "canary" not in repr(secrets)
    assert open_subscription(VAULT, stored(secrets)).config == CONFIG


def test_without_keys_secrets_are_stored_as_they_are() -> None:
    secrets = seal_secrets(Vault(None), KEY, CONFIG)
    assert secrets == ("canary-token", "canary credentials")
    assert open_subscription(Vault(None), stored(secrets)).config == CONFIG


def test_secrets_stored_before_there_were_keys_open() -> None:
    plain = stored(seal_secrets(Vault(None), KEY, CONFIG))
    assert open_subscription(VAULT, plain).config == CONFIG


def test_a_secret_is_bound_to_the_same_columns_as_in_earlier_versions() -> None:
    row = ["acme", "task-1", "alice", "config-1", URL]
    bound = '["pushkit subscription", "%s", "acme", "task-1", "alice", "config-1", "' + URL + '"]'
    assert TOKEN.context(row).decode() == bound % "token"
    assert CREDENTIALS.context(row).decode() == bound % "credentials"
    assert BODY.context(["dlv_1"]) == b"pushkit delivery\0dlv_1"


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"key": KEY._replace(tenant="other")}, id="tenant"),
        pytest.param({"key": KEY._replace(task_id="task-2")}, id="task"),
        pytest.param({"key": KEY._replace(owner="mallory")}, id="owner"),
        pytest.param({"key": KEY._replace(config_id="config-2")}, id="config"),
        pytest.param({"url": "https://mallory.example.com/"}, id="url"),
    ],
)
def test_secrets_that_were_moved_to_another_row_stay_closed(elsewhere: dict[str, str]) -> None:
    with pytest.raises(SealedSecretError, match="for another row"):
        open_subscription(VAULT, stored(seal_secrets(VAULT, KEY, CONFIG), **elsewhere))  # type: ignore[arg-type]


def test_a_token_does_not_pass_for_credentials() -> None:
    token, credentials = seal_secrets(VAULT, KEY, CONFIG)
    with pytest.raises(SealedSecretError, match="for another row"):
        open_subscription(VAULT, stored((credentials, token)))


@pytest.mark.parametrize(
    "vault",
    [
        pytest.param(Vault(None), id="no keys"),
        pytest.param(Vault(SecretKeys.generate()), id="other keys"),
    ],
)
def test_without_its_key_a_secret_is_not_left_out(vault: Vault) -> None:
    with pytest.raises(SecretKeyMissingError, match=r"token of subscription sub_1.*sealed"):
        open_subscription(vault, stored(seal_secrets(VAULT, KEY, CONFIG)))


@pytest.mark.parametrize("rest", ["", "%%%", "AAAA", "é"])
def test_a_damaged_sealed_value_is_not_sent_as_a_token(rest: str) -> None:
    with pytest.raises(SealedSecretError):
        open_subscription(VAULT, stored((f" sealed:{rest}", None)))


def test_no_client_can_register_a_token_that_looks_sealed() -> None:
    sealed, _ = seal_secrets(VAULT, KEY, CONFIG)
    with pytest.raises(InvalidPushConfigError):
        PushConfig(url=URL, token=sealed)
    with pytest.raises(InvalidPushConfigError):
        Authentication(schemes=("Bearer",), credentials=sealed)


def test_reprs_show_no_secret() -> None:
    plain = stored(seal_secrets(Vault(None), KEY, CONFIG))
    assert "canary" not in f"{plain!r} {open_subscription(Vault(None), plain)!r} {VAULT!r}"

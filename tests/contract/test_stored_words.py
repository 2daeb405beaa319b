"""Words that stand in files, databases and on the wire: those of before must be read for ever."""

from __future__ import annotations

from enum import StrEnum

import pytest

from pushkit.a2a import WireVersion
from pushkit.cards import CardOutcome
from pushkit.errors import UrlDecision
from pushkit.events import EventKind
from pushkit.keys.jwk import Algorithm
from pushkit.net.authorization import ClientAuthentication
from pushkit.outbox.states import CancelledBy, DeliveryState, Outcome
from pushkit.peers import ForwardedHeader
from pushkit.signing.scheme import Scheme
from pushkit.subscriptions.model import DisabledBy, Profile, SubscriptionState
from receiver import InboxStatus, SenderProfile, TaskPolicy

WORDS: dict[type[StrEnum], str] = {
    Algorithm: "ES256 ES384 EdDSA RS256 PS256",
    CancelledBy: "operator disabled removed superseded",
    CardOutcome: "verified refused unsigned untrusted failed",
    ClientAuthentication: "client_secret_basic client_secret_post",
    UrlDecision: "public intranet named not_a_url not_https port literal_address not_a_name"
    " special_name other_domain not_public other_network refused_network own_address",
    DeliveryState: "pending in_flight delivered dead cancelled",
    DisabledBy: "gone failing operator",
    EventKind: "delivery_dead subscription_disabled breaker_opened breaker_closed"
    " recipient_refused push_config_refused push_config_unsent local_fault enqueued attempt"
    " delivered"
    " subscription_changed signing_key_changed notification_accepted notification_repeated"
    " notification_refused called_back notification_dead",
    ForwardedHeader: "X-Forwarded-For Forwarded",
    InboxStatus: "received in_progress done dead",
    Outcome: "delivered retry dead local_fault gone",
    Profile: "standard a2a-samples",
    Scheme: "jwt standard-webhooks http-message-signatures",
    SenderProfile: "standard a2a-samples trpc-a2a-go unsigned-secret-only",
    SubscriptionState: "active paused disabled withdrawn",
    TaskPolicy: "registered bind any",
    WireVersion: "0.1 0.3 1.0 agentvault-0.2",
}


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_a_word_that_is_written_somewhere_stays(words: type[StrEnum]) -> None:
    assert {word.value for word in words} >= set(WORDS[words].split())

"""What users import: a name that goes away here is a breaking change."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "pushkit": [
        "Algorithm",
        "Artifact",
        "ArtifactUpdate",
        "Authentication",
        "BreakerPolicy",
        "DataPart",
        "DeliveryFilter",
        "DeliveryState",
        "EventKind",
        "Filter",
        "KeyRing",
        "Message",
        "MessageUpdate",
        "Profile",
        "PushConfig",
        "PushSender",
        "PushkitError",
        "RawPart",
        "RemoteKey",
        "RemoteSigner",
        "Retention",
        "RetryPolicy",
        "Role",
        "SecretKeys",
        "SenderEvent",
        "SenderOptions",
        "StatusUpdate",
        "Subscription",
        "Task",
        "TaskSnapshot",
        "TaskState",
        "TaskStatus",
        "TaskUpdate",
        "TextPart",
        "UpdateKind",
        "UrlPart",
        "WireVersion",
        "__version__",
        "decode_update",
        "encode_update",
        "load_key_ring",
        "save_key_ring",
        "wait_schedule",
    ],
    "pushkit.cards": [
        "CARD_PATH",
        "DEFAULT_FORMS",
        "EVERY_SDK",
        "LEGACY_CARD_PATH",
        "STRICT",
        "Canonical",
        "CardCheck",
        "CardForm",
        "CardOutcome",
        "CardPolicy",
        "CardPublisher",
        "CardResponse",
        "CardSummary",
        "CardTrust",
        "CardVerdict",
        "Coverage",
        "FieldCoverage",
        "Gap",
        "OriginTrust",
        "SignatureVerdict",
        "SignedCard",
        "TrustedKey",
        "TrustedKeys",
        "Uncovered",
        "canonicalize",
        "card_url",
        "fetch_card",
        "load_card_trust",
        "load_public_keys",
        "sign_card",
        "verify_card",
        "verify_cards",
    ],
    "receiver": [
        "Expectation",
        # For frameworks of one's own: what goes into `receive` and `verify_notification`, and what
        # comes out of the latter.
        "Headers",
        "InboundError",
        "InboxFilter",  # which notifications `receiver.inbox` lists and redrives
        "InboxRetention",  # `Receiver(retention=…)`
        "InboxStatus",
        "Limits",
        "Notification",
        "RateLimit",
        "Receiver",
        "SenderProfile",
        "TaskPolicy",
        "TaskState",
        "TrustSnapshot",
        "TrustedSender",
        "UpdateKind",
        "Verdict",
        "VerifiedNotification",
        "WebhookRequest",
        "fetch_trust",
        "load_trust",
        "verify_notification",
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_exports_what_it_promises(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == PUBLIC[package]
    assert all(hasattr(module, name) for name in module.__all__)

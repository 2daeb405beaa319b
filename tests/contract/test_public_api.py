"""What users import: a name that goes away here is a breaking change."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PUBLIC = {
    "pushkit": [
        "AlertOptions",
        "Algorithm",
        "Artifact",
        "ArtifactUpdate",
        "Authentication",
        "BreakerPolicy",
        "ClientCertificate",
        "DataPart",
        "DeliveryFilter",
        "DeliveryState",
        "DestinationCredentials",
        "DestinationRules",
        "Event",
        "Filter",
        "KeyRing",
        "Message",
        "MessageUpdate",
        "NotifiedDelivery",
        "NotifyResult",
        "OAuthClient",
        "Profile",
        "PushConfig",
        "PushSender",
        "PushkitError",
        "RawPart",
        "RefusedRecipient",
        "RemoteKey",
        "RemoteSigner",
        "Retention",
        "RetryPolicy",
        "Role",
        "Scheme",
        "SecretKeys",
        "SenderOptions",
        "Signing",
        "StatusUpdate",
        "Subscription",
        "SubscriptionFilter",
        "SubscriptionState",
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
        "agentvault_credentials",
        "decode_update",
        "encode_update",
        "load_key_ring",
        "save_key_ring",
        "wait_schedule",
    ],
    "pushkit.cards": [
        "CARD_PATH",
        "EVERY_SDK",
        "FULL_COVERAGE",
        "LEGACY_CARD_PATH",
        "Canonical",
        "CardCheck",
        "CardForm",
        "CardOutcome",
        "CardPolicy",
        "CardPublisher",
        "CardSummary",
        "CardTrust",
        "CardVerdict",
        "Coverage",
        "Decision",
        "DocumentResponse",
        "FieldCoverage",
        "Gap",
        "Omission",
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
        "sign_card_with",
        "verify_card",
        "verify_cards",
    ],
    "receiver": [
        "Answer",  # what `receive` returns
        "ArtifactNotification",
        "Expectation",
        # For frameworks of one's own: what goes into `receive` and `verify_notification`, and what
        # comes out of the latter.
        "Headers",
        "InboundError",
        "InboxFilter",  # which notifications `receiver.inbox` lists and redrives
        "InboxRetention",  # `Receiver(retention=…)`
        "InboxStatus",
        "Limits",
        "Mailbox",
        "MailboxOptions",
        "MailboxRefusedError",  # what a loop over a `Mailbox` raises
        "Notification",
        "RateLimit",
        "Receiver",
        "Scheme",
        "SenderProfile",
        "StatusNotification",
        "TaskPolicy",
        "TaskState",
        "TrustSnapshot",
        "TrustedSender",
        "UpdateKind",
        "VerifiedNotification",
        "WebhookRequest",
        "fetch_trust",
        "load_trust",
        "verify_notification",
    ],
    # For the tests of receivers, one's own ones too.
    "receiver.testing": [
        "CHECKS",
        "Answer",
        "Draft",
        "Finding",
        "ReceiverUnderTest",
        "SigningAgent",
        "check_receiver",
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_exports_what_it_promises(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == PUBLIC[package]
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", ["pushkit", "pushkit.cards", "receiver"])
def test_a_lazy_package_loads_a_name_from_where_type_checkers_are_told(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    [typing_only] = [node for node in tree.body if isinstance(node, ast.If)]
    told = {
        alias.name: node.module
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told.keys() | {"__version__"} == {*module.__all__, "__version__"}
    for name, home in told.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Misspelt'"):
        _ = module.Misspelt


@pytest.mark.parametrize("path", sorted(HERE.glob("test_wire_*.py")), ids=lambda path: path.stem)
def test_what_the_pages_promise_is_tested_by_public_names_alone(path: Path) -> None:
    imported = [
        node.module
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    ]
    ours = {name for name in imported if name.partition(".")[0] in {"pushkit", "receiver"}}
    assert ours <= PUBLIC.keys()

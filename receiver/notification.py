"""Step 6 of the verification: `VerifiedNotification`, read from a body that is proven."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.bounded_json import JsonValue, read_json
from pushkit.errors import MalformedRequestError
from pushkit.record import record
from pushkit.webhook import A2A_VERSION, Headers
from receiver.senders import TrustedSender
from receiver.signatures import SignedClaims, bounded_id, check_ids
from receiver.steps import Step, Trail
from receiver.tokens import ProvenSecret

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # RFC 6901 §4


class Remembered(NamedTuple):
    """What is kept of an accepted notification, to recognise it when it arrives again."""

    body_sha256: str
    task_in_body: str | None
    task_id: str | None
    kind: str
    seq: int | None


@record(frozen=True, slots=True, kw_only=True)
class VerifiedNotification:
    """A notification whose sender, body and time are proven, as far as its sender proves them.

    Attributes:
        sender: The name of the trusted sender.
        delivery_id: The same on every retry; unique together with the sender. None for an unsigned
            sender that states none: its repetitions cannot be recognised.
        body_sha256: The hash of the raw body. The same id with another hash is a conflict, to be
            answered 409.
        update: What happened, version-free.
        task_id: The task, from the signature or the body.
        config_id: The signed `configId`, if any.
        seq: The signed `seq`, if any.
        kid: The key that signed it; None if unsigned, or signed by Standard Webhooks alone.
        issued_at: `iat`, `created` or `webhook-timestamp`; None if the sender does not sign.
    """

    sender: str
    delivery_id: str | None
    body_sha256: str
    update: TaskUpdate
    task_id: str | None
    config_id: str | None
    seq: int | None
    kid: str | None
    issued_at: datetime | None

    def remembered(self) -> Remembered:
        """Return what has to be remembered of it."""
        update = self.update
        return Remembered(
            self.body_sha256, update.task_id, self.task_id, str(update.kind), self.seq
        )


def read_notification(
    claims: SignedClaims,
    delivery_id: str | None,
    body: bytes,
    body_sha256: str,
    trail: Trail,
    *,
    headers: Headers,
) -> VerifiedNotification:
    """Do the rest of step 6: parse the body, and compare it with what is signed.

    Raises:
        MalformedBodyError: No JSON within the limits.
        UnrecognisedBodyError: JSON of no A2A version.
        MalformedRequestError: The body names another task than the signature, or an id that cannot
            be stored; or two versions are stated.
    """
    trail.begun.append(Step.CONTENT)
    update, jwt = decode_update(body, headers.one(A2A_VERSION)), claims.jwt
    task_id = config_id = seq = kid = issued_at = None
    if jwt is not None:
        task_id, config_id, seq = jwt.task_id, jwt.config_id, jwt.seq
        kid, issued_at = jwt.kid, jwt.issued_at
    elif claims.signature is not None:
        kid, issued_at = claims.signature.keyid, claims.signature.issued_at
    elif claims.webhook is not None:
        issued_at = claims.webhook.timestamp
    if update.task_id and task_id and update.task_id != task_id:
        raise MalformedRequestError("the signed `taskId` is another task than the body's")
    trail.task_id = task_id = update.task_id or task_id
    trail.delivery_id = delivery_id = delivery_id or _id_in_body(body, claims.sender)
    check_ids(delivery_id, task_id)
    return VerifiedNotification(
        sender=claims.sender.name,
        delivery_id=delivery_id,
        body_sha256=body_sha256,
        update=update,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        kid=kid,
        issued_at=issued_at,
    )


def _id_in_body(body: bytes, sender: TrustedSender) -> str | None:
    """Return the member of the body that the configuration names as the id, if it is there."""
    if sender.profile.signed or sender.id_field is None or not sender.id_field.startswith("/"):
        return None
    stated = _member(read_json(body), sender.id_field)
    return bounded_id(stated) if isinstance(stated, str) and stated else None


def _member(value: JsonValue, pointer: str) -> JsonValue:
    """Follow a JSON Pointer (RFC 6901 §4); None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and _INDEX.fullmatch(name):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


class Verified(NamedTuple):
    """What steps 1 to 6 have proven, for the steps after them."""

    sender: TrustedSender
    secret: ProvenSecret | None  # the token or the credentials that authorise it, if any
    notification: VerifiedNotification
    body: bytes


class Accepted(NamedTuple):
    """A notification that was accepted, now or before."""

    sender: TrustedSender
    delivery_id: str | None
    said: Remembered
    id: int | None  # in the inbox; None for one that was accepted before
    # The generation that was accepted before and its own, if it does not follow on that.
    gap: tuple[int, int] | None = None

    @property
    def code(self) -> str:
        """`accepted` or `duplicate`."""
        return "duplicate" if self.id is None else "accepted"

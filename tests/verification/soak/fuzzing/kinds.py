"""The table of changes of a notification.

Each change takes a draft that would be accepted, and a random generator. After a `harmless` change
the notification must still be accepted; after any other, the oracles decide whether it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tests.verification.soak.fuzzing import changes_before as before
from tests.verification.soak.fuzzing import changes_beside as beside
from tests.verification.soak.fuzzing.making import Draft
from tests.verification.soak.fuzzing.parties import ALL_SCHEMES, HTTP, JWT, WEBHOOKS, Party

__all__ = ["KINDS", "Kind"]

Change = Callable[[Draft, Random], None]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to change a notification."""

    name: str  # what is changed
    change: Change  # makes the change
    # The schemes that it applies to; empty for all, and for unsigned notifications.
    of: tuple[str, ...] = ()
    harmless: bool = False  # whether the notification must still be accepted

    def fits(self, party: Party) -> bool:
        return not self.of or bool(set(self.of) & set(party.signs))


# --- the table ----------------------------------------------------------------------------------


_BY_KEY = (JWT, HTTP)
_TABLE: Mapping[tuple[str, ...], list[Change]] = {
    (): [
        beside.another_token,
        beside.no_token,
        beside.two_tokens,
        beside.other_credentials,
        beside.another_body_signed,
        beside.another_body_sent,
        beside.any_field,
        beside.any_field,
        beside.one_character,
        beside.to_another_target,
        beside.no_http,
    ],
    ALL_SCHEMES: [before.at_another_time, before.another_id_beside, before.by_no_key],
    _BY_KEY: [
        before.by_a_stranger,
        before.by_another_party,
        before.by_another_key_of_its_own,
        before.by_another_algorithm,
        before.expired,
        before.for_another_webhook,
        before.with_another_query,
    ],
    (JWT,): [
        before.odd_claim,
        before.odd_claim,
        before.odd_header_member,
        before.raw_json,
        before.raw_json,
        before.raw_header,
        before.other_base64url,
        before.before_its_time,
        before.of_another_issuer,
        before.about_another_task,
    ],
    (HTTP,): [
        before.covering_less,
        before.another_method,
        before.odd_parameter,
        before.another_digest,
        before.raw_signature_fields,
    ],
    (WEBHOOKS,): [before.by_another_secret, before.shifted_boundary],
}
_HARMLESS: Mapping[tuple[str, ...], list[Change]] = {
    (): [
        beside.one_spelling_of_the_token,
        beside.harmless_fields,
        beside.a_later_kind,
        beside.another_version_stated,
        before.with_a_query,
    ],
    ALL_SCHEMES: [before.within_the_window],
    (JWT,): [
        before.more_claims,
        before.other_spelling_of_the_header,
        before.among_several_audiences,
    ],
    (HTTP,): [before.signed_by_others_too],
    (WEBHOOKS,): [before.another_webhook_version_beside],
}


def _kinds(table: Mapping[tuple[str, ...], list[Change]], *, harmless: bool) -> list[Kind]:
    return [
        Kind(name=one.__name__.replace("_", " "), change=one, of=of, harmless=harmless)
        for of, changes in table.items()
        for one in changes
    ]


KINDS: tuple[Kind, ...] = (*_kinds(_TABLE, harmless=False), *_kinds(_HARMLESS, harmless=True))

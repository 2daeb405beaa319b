"""The receiver's limits, each at its edge: the most is accepted, one more is refused; and rates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from pushkit.peers import Peers
from pushkit.webhook import Headers
from receiver import Limits, RateLimit, SenderProfile
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT
from receiver.runtime import DRAIN
from receiver.service_state import RateLimitedError, RateLimiter
from receiver.testing import Draft
from tests.unit.receiver.drafts import claiming, sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_limits_are_those_that_the_pages_state() -> None:
    limits = Limits()

    assert limits.max_body_bytes == 1024 * 1024
    assert limits.max_header_bytes == 16 * 1024
    assert limits.request_timeout == timedelta(seconds=10)
    assert limits.peer_rate == limits.sender_rate == RateLimit(per_second=4000, burst=8000)
    assert (limits.max_backlog, limits.max_backlog_per_sender) == (500_000, 100_000)
    assert timedelta(seconds=300) == CALLBACK_TIMEOUT
    assert timedelta(seconds=20) == DRAIN


@pytest.mark.parametrize(("more", "code"), [(0, "accepted"), (1, "headers_too_large")])
async def test_a_head_may_be_as_large_as_the_limit(
    world: World, make_world: WorldFactory, more: int, code: str
) -> None:
    size = world.draft().request().headers.size()
    narrow = make_world({"limits": Limits(max_header_bytes=size - more)})

    assert (await narrow.receive(world.draft())).code == code


@pytest.mark.parametrize(("more", "code"), [(0, "accepted"), (1, "body_too_large")])
@pytest.mark.parametrize("of", ["receiver", "sender"])
async def test_a_body_may_be_as_large_as_the_limit(
    make_world: WorldFactory, of: str, more: int, code: str
) -> None:
    probe = make_world().draft()
    limit = len(probe.body) - more
    narrow = (
        make_world({"limits": Limits(max_body_bytes=limit)})
        if of == "receiver"
        else make_world(max_body_bytes=limit)
    )

    assert (await narrow.receive(probe)).code == code


@pytest.mark.parametrize(("length", "code"), [(512, "accepted"), (513, "malformed_request")])
@pytest.mark.parametrize("claim", ["configId", "jti"])
async def test_an_id_has_512_bytes_at_most(
    world: World, claim: str, length: int, code: str
) -> None:
    draft = claiming(sending(world.draft(), "webhook-id"), **{claim: "x" * length})

    assert (await world.receive(draft)).code == code


@pytest.mark.parametrize(("length", "code"), [(256, "accepted"), (257, "malformed_request")])
async def test_an_id_that_nobody_signs_has_256_characters_at_most(
    make_world: WorldFactory, length: int, code: str
) -> None:
    world = make_world(profile=SenderProfile.UNSIGNED_SECRET_ONLY, issuer=None, keys=None)
    draft: Draft = world.draft()
    draft = sending(replace(draft, signed=False), "webhook-id", "x" * length)

    assert (await world.receive(draft)).code == code


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        pytest.param("/statusUpdate/metadata/ids/1", True, id="an index"),
        pytest.param("/statusUpdate/metadata/ids/01", False, id="an index with a zero before it"),
        pytest.param("/statusUpdate/metadata/ids/2", False, id="an index beyond the end"),
        pytest.param("/statusUpdate/metadata/ids/-", False, id="the end"),
        pytest.param("/statusUpdate/metadata/empty", False, id="an empty text"),
        pytest.param("/statusUpdate/metadata/number", False, id="a number"),
        pytest.param("/statusUpdate/metadata/a~1b", True, id="a slash in a name"),
        pytest.param("/statusUpdate/metadata/a~01b", True, id="a tilde in a name"),
    ],
)
async def test_a_pointer_finds_an_id_or_nothing(
    make_world: WorldFactory, pointer: str, *, found: bool
) -> None:
    unsigned = SenderProfile.UNSIGNED_SECRET_ONLY
    world = make_world(profile=unsigned, issuer=None, keys=None, id_field=pointer)
    members = (
        b'"ids": ["x", "y"], "empty": "", "number": 1, "a/b": "slash", "a~1b": "tilde", "note"'
    )
    codes = []
    for _ in range(2):
        draft: Draft = world.draft()
        draft = sending(
            replace(draft, signed=False, body=draft.body.replace(b'"note"', members)), "webhook-id"
        )
        codes.append((await world.receive(draft)).code)

    assert codes == ["accepted", "duplicate" if found else "accepted"]


def test_the_idlest_of_more_than_ten_thousand_addresses_is_forgotten() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=0.001, burst=1))
    for number in range(10_000):
        limiter.take(str(number), NOW)

    with pytest.raises(RateLimitedError):
        limiter.take("0", NOW)  # nobody has made room, and now it is the one that came last
    limiter.take("one more", NOW)
    limiter.take("1", NOW)
    with pytest.raises(RateLimitedError):
        limiter.take("0", NOW)


@pytest.mark.parametrize(("hops", "peer"), [(31, "198.51.100.1"), (32, "10.0.0.32")])
def test_a_chain_of_proxies_is_followed_for_32_hops(hops: int, peer: str) -> None:
    chain = [f"10.0.0.{number}" for number in range(hops, 0, -1)]
    headers = Headers([("X-Forwarded-For", ", ".join(["198.51.100.1", *chain]))])

    assert Peers(["10.0.0.0/8"]).of("10.0.0.200", headers) == peer


# --- token buckets ---------------------------------------------------------------------------


def allowed(limiter: RateLimiter, key: str, now: datetime) -> bool:
    try:
        limiter.take(key, now)
    except RateLimitedError:
        return False
    return True


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=2, burst=3))
    moments = [NOW + timedelta(milliseconds=250 * step) for step in range(8)]

    burst = [allowed(limiter, "peer", NOW) for _ in range(4)]
    later = [allowed(limiter, "peer", moment) for moment in moments[1:]]

    assert burst == [True, True, True, False]
    assert later == [False, True, False, True, False, True, False]


def test_idle_time_saves_up_no_more_than_a_burst() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=1, burst=2))
    limiter.take("peer", NOW)

    day_later = [allowed(limiter, "peer", NOW + timedelta(days=1)) for _ in range(3)]

    assert day_later == [True, True, False]


def test_one_key_does_not_use_up_another() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=1, burst=1))
    limiter.take("a", NOW)

    assert allowed(limiter, "b", NOW)
    assert not allowed(limiter, "a", NOW)


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=1, burst=1))
    limiter.take("peer", NOW)

    assert not allowed(limiter, "peer", NOW - timedelta(hours=1))


def test_says_when_to_come_again() -> None:
    limiter = RateLimiter("peer_rate", RateLimit(per_second=0.1, burst=1))
    limiter.take("peer", NOW)

    with pytest.raises(RateLimitedError) as caught:
        limiter.take("peer", NOW + timedelta(seconds=4))

    assert caught.value.retry_after == timedelta(seconds=6)


@pytest.mark.parametrize(
    ("per_second", "burst"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)]
)
def test_a_limit_that_allows_nothing_is_an_error(per_second: float, burst: int) -> None:
    with pytest.raises(ConfigError):
        RateLimit(per_second=per_second, burst=burst)

"""The peer of a request behind trusted and untrusted proxies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from pushkit.peers import ForwardedHeader, Peers, rate_key
from pushkit.webhook import Headers
from receiver import Limits, RateLimit
from tests.unit.receiver.drafts import sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory

PROXIES = ("10.0.0.0/8", "2001:db8:1::/48")


@pytest.mark.parametrize(
    ("socket_peer", "header", "expected"),
    [
        pytest.param("10.0.0.1", "192.0.2.7", "192.0.2.7", id="one proxy"),
        pytest.param("10.0.0.1", "192.0.2.7, 10.9.9.9", "192.0.2.7", id="two proxies"),
        pytest.param("10.0.0.1", "1.1.1.1, 192.0.2.7", "192.0.2.7", id="a client's own word"),
        pytest.param("10.0.0.1", "1.1.1.1,192.0.2.7,10.1.1.1", "192.0.2.7", id="both"),
        pytest.param("192.0.2.9", "1.1.1.1", "192.0.2.9", id="no proxy of ours"),
        pytest.param("10.0.0.1", None, "10.0.0.1", id="no header"),
        pytest.param("10.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.2", id="from within"),
        pytest.param("10.0.0.1", "192.0.2.7, unknown", "10.0.0.1", id="hidden hop"),
        pytest.param("10.0.0.1", "192.0.2.7, <script>, 10.1.1.1", "10.1.1.1", id="garbage"),
        pytest.param("10.0.0.1", "", "10.0.0.1", id="empty"),
        pytest.param("10.0.0.1", "192.0.2.7:443", "192.0.2.7", id="with a port"),
        pytest.param("10.0.0.1", "[2001:db8:2::1]:443", "2001:db8:2::1", id="IPv6 with a port"),
        pytest.param("2001:db8:1::5", "2001:db8:2::1", "2001:db8:2::1", id="IPv6"),
        pytest.param("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7", id="IPv4 on an IPv6 socket"),
        pytest.param("::ffff:192.0.2.9", "1.1.1.1", "192.0.2.9", id="a stranger on such a socket"),
        pytest.param("", "1.1.1.1", "", id="no address at all"),
        pytest.param("10.0.0.1", ", ".join(["10.0.0.9"] * 5000), "10.0.0.9", id="many hops"),
    ],
)
def test_finds_the_right_most_untrusted_hop(
    socket_peer: str, header: str | None, expected: str
) -> None:
    headers = Headers([("X-Forwarded-For", header)] if header is not None else [])
    assert Peers(PROXIES).of(socket_peer, headers) == expected


def test_lines_of_a_header_are_one_list() -> None:
    headers = Headers([("X-Forwarded-For", "192.0.2.7"), ("x-forwarded-for", "10.1.1.1")])
    assert Peers(PROXIES).of("10.0.0.1", headers) == "192.0.2.7"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=192.0.2.7", "192.0.2.7"),
        # A proxy repeats what a client sent as its `Host`, in quotes.
        ('for=192.0.2.7;host="a,for=1.1.1.1"', "192.0.2.7"),
        ('host="a;for=1.1.1.1;";for=192.0.2.7', "192.0.2.7"),
        (r'for=192.0.2.7;host="a\",for=1.1.1.1"', "192.0.2.7"),
        # A client leaves quotes open, on the left of what the proxy appends.
        ('for="1.1.1.1, for=192.0.2.7', "192.0.2.7"),
        ("for=192.0.2.7;for=1.1.1.1", "10.0.0.1"),
        ("\\" * 16_000 + ", for=192.0.2.7", "192.0.2.7"),
        ("For=192.0.2.7;proto=http;by=10.0.0.1", "192.0.2.7"),
        ('proto=https; for="[2001:db8:2::1]:4711"', "2001:db8:2::1"),
        ("for=1.1.1.1, for=192.0.2.7, for=10.2.2.2", "192.0.2.7"),
        ("for=_hidden", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
        ("notfor=192.0.2.7", "10.0.0.1"),
    ],
)
def test_reads_rfc_7239_where_that_is_what_the_proxies_write(value: str, expected: str) -> None:
    peers = Peers(PROXIES, ForwardedHeader.FORWARDED)
    assert peers.of("10.0.0.1", Headers([("Forwarded", value)])) == expected
    # The other header is the client's own word.
    assert peers.of("10.0.0.1", Headers([("X-Forwarded-For", "1.1.1.1")])) == "10.0.0.1"


@pytest.mark.parametrize("written", [",", '"', ';"\\"', "for=1.1.1.1,"])
def test_of_what_a_client_writes_before_its_proxy_little_is_read(written: str) -> None:
    peers = Peers(PROXIES, ForwardedHeader.FORWARDED)
    headers = Headers([("Forwarded", f"{written * 3000}, for=192.0.2.7")])
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        found = peers.of("10.0.0.1", headers)
    finally:
        sys.setprofile(None)
    assert found == "192.0.2.7"
    assert calls < 200


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "proxy", "", "10.0.0.1/8"])
def test_a_proxy_is_an_address_or_a_network(entry: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        Peers([entry])


def test_a_string_in_place_of_the_list_of_proxies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trusted_proxies: found '10.0.0.0/8', expected a list"):
        Peers("10.0.0.0/8")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_ipv6_counts_by_its_64(one: str, other: str, *, same: bool) -> None:
    assert (rate_key(one) == rate_key(other)) is same


async def test_clients_behind_a_trusted_proxy_have_a_rate_each(make_world: WorldFactory) -> None:
    limits = Limits(peer_rate=RateLimit(per_second=1, burst=1))
    options = {"limits": limits, "trusted_proxies": ["127.0.0.1"]}
    world = make_world(options)
    answers = []
    for number, client in enumerate(("192.0.2.1", "192.0.2.1", "192.0.2.2"), start=1):
        draft = sending(world.draft(number), "X-Forwarded-For", client)
        answers.append(await world.post(draft))
    assert [answer.status for answer in answers] == [202, 429, 202]
    assert answers[1].headers["Retry-After"] == "1"

"""The edges of the rules on destinations: the last refused value, the first accepted one."""

from __future__ import annotations

import ipaddress

import pytest

from pushkit.errors import ConfigError, DestinationRefusedError, JwksError, UrlDecision
from pushkit.keys.jwks import parse_jwks
from pushkit.net.addresses import address_is_public
from pushkit.net.destination import DestinationPolicy, DestinationRules
from tests.refusals import refused_unless

# By RFC 6890 and the IANA registries, written here once more: (network, whether what lies before
# it is public, and what comes after it).
NETWORKS = [
    ("0.0.0.0/8", False, True),
    ("10.0.0.0/8", True, True),
    ("100.64.0.0/10", True, True),
    ("127.0.0.0/8", True, True),
    ("168.63.129.16/32", True, True),
    ("169.254.0.0/16", True, True),
    ("172.16.0.0/12", True, True),
    ("192.0.0.0/24", True, True),
    ("192.0.2.0/24", True, True),
    ("192.31.196.0/24", True, True),
    ("192.52.193.0/24", True, True),
    ("192.88.99.0/24", True, True),
    ("192.168.0.0/16", True, True),
    ("192.175.48.0/24", True, True),
    ("198.18.0.0/15", True, True),
    ("198.51.100.0/24", True, True),
    ("203.0.113.0/24", True, True),
    ("224.0.0.0/4", True, False),
    ("240.0.0.0/4", False, False),
    ("::/3", False, True),
    ("2001::/23", True, True),
    ("2001:db8::/32", True, True),
    ("2002::/16", True, True),
    ("2620:4f:8000::/48", True, True),
    ("3fff::/20", True, True),
    ("4000::/2", True, False),
    ("8000::/1", False, False),
]


@pytest.mark.parametrize(("network", "before", "after"), NETWORKS)
def test_a_network_is_refused_from_its_first_address_to_its_last(
    network: str, *, before: bool, after: bool
) -> None:
    whole = ipaddress.ip_network(network)
    first, last = whole.network_address, whole.broadcast_address
    beyond = 2**whole.max_prefixlen

    assert not address_is_public(str(first))
    assert not address_is_public(str(last))
    if int(first) > 0:
        assert address_is_public(str(first - 1)) is before
    if int(last) + 1 < beyond:
        assert address_is_public(str(last + 1)) is after


@pytest.mark.parametrize(
    ("address", "public"),
    [
        pytest.param("2606:4700::5efe:7f00:1", False, id="of a private address"),
        pytest.param("2606:4700::200:5efe:808:808", False, id="of a global address"),
        pytest.param("2606:4700::1:5efe:808:808", True, id="another identifier"),
        pytest.param("2606:4700::5eff:808:808", True, id="the next identifier"),
    ],
)
def test_an_isatap_address_is_refused_under_any_prefix(address: str, *, public: bool) -> None:
    assert address_is_public(address) is public


@pytest.mark.parametrize(("characters", "accepted"), [(2048, True), (2049, False)])
def test_a_url_has_2048_characters_at_most(characters: int, *, accepted: bool) -> None:
    url = "https://client.example.com/".ljust(characters, "x")

    with refused_unless(accepted, DestinationRefusedError, "longer than 2048"):
        assert DestinationPolicy().check(url).url.target == url.removeprefix(
            "https://client.example.com"
        )


@pytest.mark.parametrize(("characters", "accepted"), [(253, True), (254, False)])
def test_a_name_has_253_characters_at_most(characters: int, *, accepted: bool) -> None:
    labels = "a" * 63 + "." + "b" * 63 + "." + "c" * 63 + "."
    host = labels + "d" * (characters - len(labels) - 4) + ".com"
    assert len(host) == characters

    with refused_unless(accepted, DestinationRefusedError, "not a host name"):
        assert DestinationPolicy().check(f"https://{host}/").url.host == host


@pytest.mark.parametrize(
    ("port", "accepted"), [(0, False), (1, True), (65535, True), (65536, False)]
)
def test_a_port_is_a_port_in_the_rules_and_in_a_url(port: int, *, accepted: bool) -> None:
    if not accepted:
        with pytest.raises(ConfigError, match="not a port"):
            DestinationPolicy(rules=DestinationRules(ports=(port,)))
        with pytest.raises(DestinationRefusedError, match="not a port"):
            DestinationPolicy().check(f"https://client.example.com:{port}/")
        return
    policy = DestinationPolicy(rules=DestinationRules(ports=(port,)))
    assert policy.check(f"https://client.example.com:{port}/").url.port == port


@pytest.mark.parametrize(
    ("port", "accepted"), [(443, True), (8443, True), (80, False), (444, False)]
)
def test_without_rules_two_ports_are_allowed(port: int, *, accepted: bool) -> None:
    url = f"https://client.example.com:{port}/"

    with refused_unless(accepted, DestinationRefusedError, "expected 443 or 8443"):
        assert DestinationPolicy().check(url).url.port == port


def test_networks_narrow_down_and_refused_ones_go_first() -> None:
    rules = DestinationRules(networks=["8.8.8.0/24"], refused_networks=["8.8.8.128/25"])
    policy = DestinationPolicy(rules=rules)

    assert policy.decide_on_address("8.8.8.127") is UrlDecision.PUBLIC
    assert policy.decide_on_address("8.8.8.128") is UrlDecision.REFUSED_NETWORK
    assert policy.decide_on_address("8.8.9.0") is UrlDecision.OTHER_NETWORK
    assert policy.decide_on_address("10.0.0.1") is UrlDecision.NOT_PUBLIC


@pytest.mark.parametrize(("octets", "read"), [(65536, True), (65537, False)])
def test_a_jwk_set_has_64_kib_at_most(octets: int, *, read: bool) -> None:
    document = b'{"keys":[]}'.ljust(octets)

    with refused_unless(read, JwksError, "larger than 65536"):
        assert parse_jwks(document).keys == []


@pytest.mark.parametrize(
    "suffix",
    [
        *("localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp"),
        *("test", "example", "invalid", "onion", "home.arpa", "arpa", "alt", "svc"),
    ],
)
def test_a_special_name_is_refused_itself_and_with_names_below_it(suffix: str) -> None:
    for host in (suffix, f"client.{suffix}", f"a.b.{suffix.upper()}."):
        with pytest.raises(DestinationRefusedError, match="special-use name") as caught:
            DestinationPolicy().check(f"https://{host}/")
        assert caught.value.decision is UrlDecision.SPECIAL_NAME
    for name in (f"{suffix.replace('.', '-')}x", f"client-{suffix}"):
        assert DestinationPolicy().check(f"https://{name}.com/").url.port == 443


def test_a_url_without_a_port_has_that_of_its_scheme() -> None:
    policy = DestinationPolicy(["localhost:80", "localhost:443"])

    assert policy.check("http://localhost/").url.port == 80
    assert policy.check("https://localhost/").url.port == 443

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import ConfigError, DestinationRefusedError, UrlDecision
from pushkit.net.addresses import address_is_public
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.url import Url, audience_of
from tests.hostile import hostile_urls
from tests.refusals import refused_unless

POLICY = DestinationPolicy()


HOSTILE = [
    url
    for line in hostile_urls(8443)
    # As written, and with a scheme that is no reason to refuse it.
    for url in dict.fromkeys((line.url, line.url.replace("http://", "https://", 1)))
]


def test_the_list_is_whole() -> None:
    assert len(hostile_urls(8443)) == 71
    assert any("\u2460" in line.url for line in hostile_urls(8443))


@pytest.mark.parametrize("url", HOSTILE)
def test_refuses_every_hostile_url(url: str) -> None:
    with pytest.raises(DestinationRefusedError):
        POLICY.check(url)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http\u017f://client.example.com/", id="a long s in the scheme"),
        pytest.param("https://\u212alient.example.com/", id="a Kelvin sign in the host"),
        pytest.param("https://client.example.com/\u212a", id="a Kelvin sign in the path"),
        pytest.param("https://client.example.com/?\u017f", id="a long s in the query"),
        pytest.param("https://client.example.com/\\@evil.example.com", id="a backslash"),
        pytest.param("https://client.example.com/?\\", id="a backslash in the query"),
        pytest.param("https://client.example.com/a b", id="a space"),
        pytest.param("https://client.example.com/\r\nX: y", id="a line break"),
        pytest.param("https://client.example.com/\n", id="a line break at the end"),
        pytest.param("https://client.example.com/\0", id="a zero"),
        pytest.param("https://client.example.com/#a", id="a fragment"),
        pytest.param("https://client.example.com:/", id="a colon without a port"),
        pytest.param("https://client.example.com:00000443/", id="a port of eight digits"),
        pytest.param("https://client.example.com:\u0664\u0664\u0663/", id="a port in Arabic"),
        pytest.param("http://client.example.com/", id="http"),
        pytest.param("https://user@client.example.com/", id="a user"),
        pytest.param("https://client.example.com%2f@evil.example.com/", id="a percent sign"),
        pytest.param("https://-a.example.com/", id="a label that begins with a hyphen"),
        pytest.param("https://a..example.com/", id="an empty label"),
        pytest.param("https://localhost../", id="two dots at the end"),
        pytest.param(f"https://{'a' * 64}.example.com/", id="a label of 64"),
        pytest.param("https://2130706433/", id="a decimal address"),
        pytest.param("https://1.2.3.4.5/", id="a name that ends in a number"),
        pytest.param("https://client.0x7f/", id="a name that ends in a hex number"),
        pytest.param("https://8.8.8.8/", id="a public address"),
        pytest.param("https://[2606:4700::1111]/", id="a public IPv6 address"),
        pytest.param("https://[::1/", id="half a bracket"),
        pytest.param("", id="nothing"),
    ],
)
def test_refuses(url: str) -> None:
    with pytest.raises(DestinationRefusedError):
        POLICY.check(url)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://client.example.com", ("client.example.com", 443, "/")),
        ("HTTPS://Client.Example.COM./A", ("client.example.com", 443, "/A")),
        ("https://client.example.com:8443/a?b=c", ("client.example.com", 8443, "/a?b=c")),
        ("https://client.example.com?b=c", ("client.example.com", 443, "/?b=c")),
        ("https://xn--bcher-kva.example.com/a%20b", ("xn--bcher-kva.example.com", 443, "/a%20b")),
        ("https://a_b.example.com/;x=1,2/~u/(v)!", ("a_b.example.com", 443, "/;x=1,2/~u/(v)!")),
        ("https://client.example.com/@a:b?@c:d/e?f", ("client.example.com", 443, "/@a:b?@c:d/e?f")),
    ],
)
def test_accepts(url: str, parts: tuple[str, int, str]) -> None:
    found = POLICY.check(url)
    assert (found.url.host, found.url.port, found.url.target) == parts
    assert (found.url.scheme, found.allowed_by_name) == ("https", False)


@given(
    st.text(max_size=80)
    | st.from_regex(r"(?i)https?://[a-z0-9.\[\]:-]{1,30}(:[0-9]{0,6})?[/?]?[!-~]{0,20}")
)
def test_any_text_is_a_destination_or_the_one_error(url: str) -> None:
    for policy in (POLICY, DestinationPolicy(["localhost:*", "[::1]:*", "127.0.0.1:*"])):
        try:
            found = policy.check(url)
        except DestinationRefusedError:
            continue
        assert policy.check(str(found.url)) == found
        assert str(found.url).isascii()
        assert audience_of(str(found.url)) == audience_of(url) == found.url.audience


@pytest.mark.parametrize("secret", ["https://canary.example.com/ ", "http://a.example.com/?canary"])
def test_no_refusal_repeats_path_or_query(secret: str) -> None:
    with pytest.raises(DestinationRefusedError) as caught:
        POLICY.check(secret)
    assert "canary" not in str(caught.value)


# --- edges: the last value that is refused, and the first that is accepted ----------------------


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


# --- allow -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("127.0.0.1:*", "http://127.0.0.1:9999/a"),
        ("127.0.0.1:9999", "http://127.0.0.1:9999/a"),
        ("localhost:*", "http://LOCALHOST./a"),
        ("[::1]:8080", "http://[0:0:0:0:0:0:0:1]:8080/a"),
        ("hooks.internal:22", "https://hooks.internal:22/a"),
    ],
)
def test_a_host_that_is_named_is_allowed(allow: str, url: str) -> None:
    assert DestinationPolicy([allow]).check(url).allowed_by_name


@pytest.mark.parametrize("url", HOSTILE)
def test_naming_a_host_lifts_the_rules_for_that_host_alone(url: str) -> None:
    with pytest.raises(DestinationRefusedError):
        DestinationPolicy(["named.internal:*", "127.0.0.9:*"]).check(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9998/",
        "http://127.1:9999/",
        "http://0x7f000001:9999/",
        "http://127.0.0.1.nip.io:9999/",
        "http://127.0.0.1@evil.example.com:9999/",
    ],
)
def test_naming_a_port_lifts_the_rules_for_that_port_alone(url: str) -> None:
    with pytest.raises(DestinationRefusedError):
        DestinationPolicy(["127.0.0.1:9999"]).check(url)


def test_a_named_host_at_another_port_is_checked_like_any_other() -> None:
    found = DestinationPolicy(["hooks.example.com:9999"]).check("https://hooks.example.com/")
    assert not found.allowed_by_name


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "localhost",
        ":80",
        "localhost:",
        "localhost:x",
        "localhost:\u0668\u0660",
        "[::z]:1",
        "*:*",
        "http://localhost:80",
    ],
)
def test_an_entry_that_names_no_host_and_port_is_a_configuration_error(entry: str) -> None:
    with pytest.raises(ConfigError):
        DestinationPolicy([entry])


def test_a_string_in_place_of_the_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="allow: expected a list, found a string"):
        DestinationPolicy("127.0.0.1:*")


def test_there_is_no_entry_that_allows_everything() -> None:
    for entry in ("0.0.0.0:*", "[::]:*", ".:*"):
        with pytest.raises(DestinationRefusedError):
            DestinationPolicy([entry]).check("http://127.0.0.1:8080/")


# --- addresses ---------------------------------------------------------------------------------


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


def test_networks_narrow_down_and_refused_ones_go_first() -> None:
    rules = DestinationRules(networks=["8.8.8.0/24"], refused_networks=["8.8.8.128/25"])
    policy = DestinationPolicy(rules=rules)

    assert policy.decide_on_address("8.8.8.127") is UrlDecision.PUBLIC
    assert policy.decide_on_address("8.8.8.128") is UrlDecision.REFUSED_NETWORK
    assert policy.decide_on_address("8.8.9.0") is UrlDecision.OTHER_NETWORK
    assert policy.decide_on_address("10.0.0.1") is UrlDecision.NOT_PUBLIC


@pytest.mark.parametrize(
    "address",
    [
        *("::ffff:8.8.8.8", "64:ff9b::a9fe:a9fe", "fe80::1%lo"),
        *("", "localhost", "1", "0x7f.1", "127.1", "2606:4700::1111%eth0 "),
    ],
)
def test_an_address_that_embeds_another_or_is_none_is_refused(address: str) -> None:
    assert not address_is_public(address)


def test_origin_and_url_bracket_an_ipv6_address() -> None:
    found = Url(scheme="http", host="::1", port=80, target="/a")
    assert (found.origin, str(found)) == ("http://[::1]:80", "http://[::1]:80/a")
    assert (found.authority, found.audience) == ("[::1]", "http://[::1]/a")

"""`pushkit worker --destinations FILE`: what it may say, and what it says of a mistake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pushkit import (
    Authentication,
    ClientCertificate,
    DestinationCredentials,
    DestinationRules,
    KeyRing,
    OAuthClient,
    SenderOptions,
    save_key_ring,
)
from pushkit.cli.destinations import load_destinations
from pushkit.errors import ConfigError
from tests.system.cli.conftest import ISSUER

if TYPE_CHECKING:
    from tests.system.cli.conftest import Run

WHOLE = """
proxy_env = "EGRESS"
ca_file = "roots.pem"
verify_ownership = true
rate_per_origin = 50

[rules]
domains = ["*.partner.net"]
ports = [443, 9443]
networks = ["93.184.216.0/24"]
refused_networks = ["93.184.216.34/32"]
allow_domains = ["corp.example"]
allow_networks = ["10.1.0.0/16"]

[[credentials]]
origin = "https://a.partner.net"
scheme = "ApiKey"
credentials_env = "API_KEY"

[[credentials]]
origin = "https://b.partner.net:9443"
owner = "alice"
tenant = "acme"
client_certificate = "client.pem"
client_key = "client.key"
client_key_password_file = "password.txt"
ca_file = "their-root.pem"

[credentials.oauth]
token_url = "https://auth.partner.net/token"
client_id = "agent"
client_secret_file = "secret.txt"
scope = "push"
audience = "hooks"
resource = "https://hooks.partner.net/"
authentication = "client_secret_post"
"""


@pytest.fixture
def folder(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EGRESS", "http://user:canary-1@proxy.internal:3128")
    monkeypatch.setenv("API_KEY", "canary-2")
    folder = own_folder / "settings"
    folder.mkdir()
    (folder / "secret.txt").write_text("canary-3\n")
    (folder / "password.txt").write_text("canary-4\n")
    return folder


@pytest.fixture
def worker(folder: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> list[str]:
    """Return the command line that names the file, or leaves that to the environment."""
    save_key_ring("keys.json", KeyRing.create(datetime.now(UTC)))
    path = str(folder / "destinations.toml")
    command = ["worker", "--database", "outbox.db", "--issuer", ISSUER]
    if not by_environment:
        return [*command, "--destinations", path]
    monkeypatch.setenv("PUSHKIT_DESTINATIONS", path)
    return command


def written(folder: Path, text: str) -> Path:
    path = folder / "destinations.toml"
    path.write_text(text)
    return path


def test_everything_that_it_can_say(folder: Path) -> None:
    found = load_destinations(written(folder, WHOLE))
    assert found == {
        "proxy": "http://user:canary-1@proxy.internal:3128",
        "ca_file": folder / "roots.pem",
        "verify_ownership": True,
        "rate_per_origin": 50,
        "destinations": DestinationRules(
            domains=("*.partner.net",),
            ports=(443, 9443),
            networks=("93.184.216.0/24",),
            refused_networks=("93.184.216.34/32",),
            allow_domains=("corp.example",),
            allow_networks=("10.1.0.0/16",),
        ),
        "credentials": (
            DestinationCredentials(
                origin="https://a.partner.net",
                authentication=Authentication(schemes=("ApiKey",), credentials="canary-2"),
            ),
            DestinationCredentials(
                origin="https://b.partner.net:9443",
                owner="alice",
                tenant="acme",
                oauth=OAuthClient(
                    token_url="https://auth.partner.net/token",
                    client_id="agent",
                    client_secret="canary-3",
                    scope="push",
                    audience="hooks",
                    resource="https://hooks.partner.net/",
                    authentication="client_secret_post",
                ),
                client_certificate=ClientCertificate(
                    certificate=folder / "client.pem",
                    key=folder / "client.key",
                    password="canary-4",
                ),
                ca_file=folder / "their-root.pem",
            ),
        ),
    }


def test_a_byte_order_mark_belongs_to_no_member(tmp_path: Path) -> None:
    file = tmp_path / "destinations.toml"
    file.write_text("rate_per_origin = 50\n", "utf-8-sig")
    assert load_destinations(file)["rate_per_origin"] == 50


def test_an_empty_file_changes_nothing(folder: Path) -> None:
    plain = SenderOptions()
    for name, value in load_destinations(written(folder, "")).items():
        assert value == getattr(plain, name)


CREDENTIALS = '[[credentials]]\norigin = "https://a.partner.net"\n'
OAUTH = CREDENTIALS + '[credentials.oauth]\ntoken_url = "https://t.partner.net"\nclient_id = "a"\n'


MISTAKES = {
    "not TOML: Invalid": "proxy = ",
    "destinations.toml: not TOML: ": f"x = {'[' * 9000}",
    "not TOML: ": f"x = 1{'0' * 5000}",
    ":1: proxxy: there is no such setting; did you mean 'proxy'?": 'proxxy = "http://canary"',
    ":2: rules.ports[0]: ": '[rules]\nports = ["canary"]',
    ":1: credentials[0].origin: expected, but missing": "[[credentials]]",
    ":1: ca_file: expected the path of a file": 'ca_file = ""',
    ":3: credentials[0].ca_file: expected the path of a file": CREDENTIALS + 'ca_file = ""',
    ":1: rate_per_origin: ": "rate_per_origin = 0",
    ":2: proxy_env: expected either proxy": 'proxy = "http://canary:1"\nproxy_env = "EGRESS"',
    ":1: proxy_env: the variable NOBODY is not set": 'proxy_env = "NOBODY"',
    ":1: proxy_env: the variable of that name is not set": (
        'proxy_env = "http://user:canary@proxy.example.com:3128"'
    ),
    "***@a.partner.net: expected scheme": (
        CREDENTIALS.replace("https://", "https://canary@") + 'scheme = "Bearer"'
    ),
    ":1: credentials[0]: https://a.partner.net: expected scheme": CREDENTIALS + 'scheme = "Bearer"',
    "https://a.partner.net: expected scheme together": CREDENTIALS + 'credentials_env = "API_KEY"',
    "either credentials_env or credentials_file": (
        CREDENTIALS + 'scheme = "B"\ncredentials_env = "API_KEY"\ncredentials_file = "x"'
    ),
    "client_certificate: expected together with its key": CREDENTIALS + 'client_key = "client.key"',
    "expected client_secret_env": OAUTH,
    ":6: credentials[0].oauth.client_secret: there is no such": OAUTH + 'client_secret = "canary"',
    ":6: credentials[0].oauth.client_secret_file: cannot read": (
        OAUTH + 'client_secret_file = "nowhere.txt"'
    ),
    "empty.txt: empty": OAUTH + 'client_secret_file = "empty.txt"',
    ":7: credentials[0].oauth.authentication: ": (
        OAUTH + 'client_secret_env = "API_KEY"\nauthentication = "canary"'
    ),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_named_and_no_value_repeated(folder: Path, said: str) -> None:
    (folder / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError) as caught:
        load_destinations(written(folder, MISTAKES[said]))
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)


def test_every_mistake_is_named_at_once_with_its_own_line(folder: Path) -> None:
    text = f"{CREDENTIALS}ownr = 'canary'\n{CREDENTIALS}\n[rules]\nports = ['canary']\n"
    with pytest.raises(ConfigError) as caught:
        load_destinations(written(folder, text))
    first, second = sorted(str(caught.value).splitlines())
    assert first.endswith(
        ":3: credentials[0].ownr: there is no such setting; did you mean 'owner'?"
    )
    assert ":8: rules.ports[0]: " in second


def test_a_mistake_in_the_second_of_many_is_not_placed_at_the_first(folder: Path) -> None:
    text = OAUTH + 'client_secret_env = "API_KEY"\n' + OAUTH
    with pytest.raises(ConfigError, match=r":9: credentials\[1\]\.oauth: "):
        load_destinations(written(folder, text))


def test_a_file_that_is_not_there_is_a_configuration_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_destinations(folder / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('proxy = "socks5://canary:1080"', "destinations.toml:1: proxy: expected http://"),
        ('[rules]\ndomains = ["localhost"]', "destinations.toml:2: rules.domains: 'localhost'"),
        ('ca_file = "nowhere.pem"', "ca_file: "),
        (CREDENTIALS.replace("https", "http"), "credentials: origin: "),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_the_worker_does_not_start_with_a_wrong_file(
    pushkit_command: Run, worker: list[str], folder: Path, text: str, said: str
) -> None:
    written(folder, text)
    ran = pushkit_command(*worker)
    assert ran.status == 1
    assert said in ran.error
    assert "canary" not in ran.err

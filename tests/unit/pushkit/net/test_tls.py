"""Real TLS servers, some with wrong certificates or versions; verification is never off."""

from __future__ import annotations

import asyncio
import datetime
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pushkit.errors import ConfigError, TransportError
from pushkit.keys.jwk import Algorithm, generate_key, signing_key_from_pem, signing_key_to_pem
from pushkit.net.connection import HttpAnswer
from pushkit.net.tls import ClientCertificate, tls_context
from pushkit.net.transport import Transport
from tests.eventually import PATIENT
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet
from tests.unit.pushkit.net.conftest import MakeTransport

URL = f"https://{HOOKS}/hook"
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


async def answers(request: web.Request) -> web.Response:
    certificate = request.get_extra_info("peercert")
    subject = str(certificate["subjectAltName"][0][1]) if certificate else "nobody"
    return web.Response(text=subject, headers={"X-Host": request.headers["Host"]})


@pytest.fixture
def transport(internet: Internet, make_transport: MakeTransport) -> Transport:
    return make_transport(resolver=internet.network.names, ca_file=internet.ca_file)


async def post(transport: Transport, **options: object) -> HttpAnswer:
    destination = transport.policy.check(URL)
    return await transport.post(destination, [], b"", timeout=PATIENT, **options)  # type: ignore[arg-type]


async def test_a_good_certificate_is_accepted(internet: Internet, transport: Transport) -> None:
    await internet.serve(answers)
    answer = await post(transport)
    assert (answer.status, answer.headers.one("X-Host")) == (200, HOOKS)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        pytest.param("name", "Hostname mismatch", id="another name"),
        pytest.param("expired", "expired", id="expired"),
        pytest.param("not yet", "not yet valid", id="not valid yet"),
        pytest.param("authority", "unable to get", id="an authority that nobody knows"),
        pytest.param("address", "Hostname mismatch", id="the address in place of the name"),
    ],
)
async def test_a_bad_certificate_is_refused_before_anything_is_sent(
    internet: Internet, transport: Transport, wrong: str, reason: str
) -> None:
    asked = []

    async def never(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    issue = internet.authority.issue_cert
    ahead = datetime.datetime.now(datetime.UTC) + timedelta(days=30)
    certificate = {
        "name": lambda: issue("other.example.com"),
        "expired": lambda: issue(HOOKS, not_before=LONG_AGO, not_after=LONG_AGO + timedelta(1)),
        "not yet": lambda: issue(HOOKS, not_before=ahead, not_after=ahead + timedelta(1)),
        "authority": lambda: trustme.CA().issue_cert(HOOKS),
        "address": lambda: issue("93.184.216.34"),
    }[wrong]()
    await internet.serve(never, certificate=certificate)
    with pytest.raises(TransportError, match=reason):
        await post(transport)
    assert asked == []


async def test_a_self_signed_certificate_is_refused_unless_it_is_what_is_trusted(
    internet: Internet, transport: Transport
) -> None:
    await internet.serve(answers, certificate=_self_signed(internet.directory))
    with pytest.raises(TransportError, match="self-signed certificate"):
        await post(transport)
    pinned = tls_context(ca_file=internet.directory / "self.pem", system_roots=False)
    assert (await post(transport, tls=pinned)).status == 200


async def test_a_server_that_closes_in_the_handshake_is_reported(
    internet: Internet, transport: Transport
) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    internet.network.leads(HOOKS, HOOKS_ADDRESS, 443, to=server.sockets[0].getsockname()[1])
    async with server:
        with pytest.raises(TransportError, match="closed in the TLS handshake"):
            await post(transport)


async def test_a_client_certificate_is_sent_only_for_its_owners_notifications(
    internet: Internet, transport: Transport
) -> None:
    await internet.serve(answers, clients_of=internet.authority)
    contexts = {}
    for name in ("alice", "bob", "carol"):
        folder = internet.directory / name
        folder.mkdir()
        client = client_certificate(internet.authority, folder, name=f"{name}.example.com")
        contexts[name] = tls_context(client=client, ca_file=internet.ca_file)
    asked = list(contexts) * 20
    answered = await asyncio.gather(*(post(transport, tls=contexts[name]) for name in asked))
    assert [each.body for each in answered] == [f"{name}.example.com".encode() for name in asked]


async def test_roots_of_a_destination_stand_in_place_of_all_others(
    internet: Internet, transport: Transport
) -> None:
    await internet.serve(answers)
    other = internet.directory / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with pytest.raises(TransportError, match="unable to get local issuer"):
        await post(transport, tls=tls_context(ca_file=other, system_roots=False))


# --- mutual TLS ----------------------------------------------------------------------------------


def client_certificate(
    authority: trustme.CA,
    directory: Path,
    *,
    password: str | None = None,
    name: str = "agent.example.com",
) -> ClientCertificate:
    issued = authority.issue_cert(name)
    certificate, key = directory / "client.pem", directory / "client.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    private = signing_key_from_pem(issued.private_key_pem.bytes())
    key.write_bytes(signing_key_to_pem(private, password.encode() if password else None))
    return ClientCertificate(certificate=certificate, key=key, password=password)


@pytest.mark.parametrize("password", [None, "open sesame"])
async def test_a_server_that_demands_a_certificate_gets_it(
    internet: Internet, transport: Transport, password: str | None
) -> None:
    await internet.serve(answers, clients_of=internet.authority)
    client = client_certificate(internet.authority, internet.directory, password=password)
    answer = await post(transport, tls=tls_context(client=client, ca_file=internet.ca_file))
    assert answer.body == b"agent.example.com"


async def test_a_get_shows_the_certificate_too(internet: Internet, transport: Transport) -> None:
    await internet.serve(answers, clients_of=internet.authority)
    client = client_certificate(internet.authority, internet.directory)
    tls = tls_context(client=client, ca_file=internet.ca_file)
    destination = transport.policy.check(f"https://{HOOKS}/")
    answer = await transport.get(destination, [], timeout=PATIENT, tls=tls)
    assert answer.body == b"agent.example.com"
    with pytest.raises(TransportError):
        await transport.get(destination, [], timeout=PATIENT)


async def test_a_connection_with_a_certificate_is_not_shared_without_it(
    internet: Internet, transport: Transport
) -> None:
    asked = []

    async def who(request: web.Request) -> web.Response:
        asked.append(request.get_extra_info("peername"))
        return web.Response()

    await internet.serve(who)
    context = tls_context(ca_file=internet.ca_file)
    for tls in (context, context, None):
        await post(transport, tls=tls)
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize("broken", ["missing", "not PEM", "wrong password"])
def test_a_client_certificate_that_cannot_be_used_is_a_configuration_error(
    internet: Internet, broken: str
) -> None:
    client = client_certificate(internet.authority, internet.directory, password="canary-1")
    if broken == "missing":
        client.certificate.unlink()
    elif broken == "not PEM":
        client.certificate.write_text("canary-2")
    else:
        client = ClientCertificate(
            certificate=client.certificate, key=client.key, password="canary-3"
        )
    with pytest.raises(ConfigError, match="client certificate") as caught:
        tls_context(client=client)
    assert "canary" not in str(caught.value) + repr(client)


def test_the_file_of_a_client_certificate_that_is_missing_is_named(internet: Internet) -> None:
    client = client_certificate(internet.authority, internet.directory)
    assert client.key is not None
    client.key.unlink()
    with pytest.raises(ConfigError, match=r"client\.key: No such file"):
        tls_context(client=client)
    client.certificate.unlink()
    alone = ClientCertificate(certificate=client.certificate)
    with pytest.raises(ConfigError, match=r"client\.pem: No such file"):
        tls_context(client=alone)


@pytest.mark.parametrize("text", [None, "not PEM"])
def test_roots_that_cannot_be_read_are_a_configuration_error(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="ca_file"):
        tls_context(ca_file=path)


def _self_signed(directory: Path) -> trustme.LeafCert:
    key = generate_key(Algorithm.ES256)
    assert isinstance(key.private_key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOOKS)])
    now, day = datetime.datetime.now(datetime.UTC), timedelta(days=1)
    public_key = key.private_key.public_key()
    certificate = (
        x509.CertificateBuilder(name, name, public_key, 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOOKS)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key.private_key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (directory / "self.pem").write_bytes(pem)
    return trustme.LeafCert(signing_key_to_pem(key), pem, [])


def test_files_that_are_no_path_are_refused_without_their_password() -> None:
    dsn = Path("postgresql://agent:geheim@db/agent")
    for path in (dsn, Path("a\0b")):
        with pytest.raises(ConfigError, match=r"^ca_file: ") as of_roots:
            tls_context(ca_file=path)
        with pytest.raises(ConfigError, match=r"^client certificate: ") as of_client:
            tls_context(client=ClientCertificate(certificate=path))
        assert "geheim" not in f"{of_roots.value}{of_client.value}"

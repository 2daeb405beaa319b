"""`Trust`: the trusted senders, each with its keys, or with the pinned URL that has them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pushkit.clock import utc_now
from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    JwksError,
    KeyFileError,
    KeysUnavailableError,
)
from pushkit.files import read_file
from pushkit.keys.jwks import KeysByKid, keys_by_kid, parse_jwks_file
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import JwksClient, fetch_jwks
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.options import checked
from pushkit.signing.scheme import Scheme
from receiver.selection import (
    Entry,
    HeldKeys,
    ReceiverPath,
    Stated,
    base_url,
    by_request_path,
    endpoints_of,
)
from receiver.senders import TrustedSender

_log = logging.getLogger("receiver")


class TrustSnapshot:
    """The trusted senders with their keys at one moment, for `verify_notification`.

    Immutable. Since keys change, replace it every few minutes (`fetch_trust`), or when a key file
    has changed.

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths.
        held: The senders with their keys.
    """

    def __init__(self, url: str, held: Iterable[HeldKeys]) -> None:
        self.held: tuple[HeldKeys, ...] = tuple(held)
        entries = [Entry(each.sender, each) for each in self.held]
        self._endpoints = endpoints_of(base_url(url), entries)

    def at(self, path: str) -> ReceiverPath:
        """Return the endpoint of a path, as configured; one without senders if there is none."""
        return self._endpoints.get(path) or ReceiverPath(path, "")


class Trust:
    """The trusted senders, each with its keys. Replaced as a whole, never changed."""

    def __init__(self, url: str, entries: Iterable[Entry]) -> None:
        self.url: str = base_url(url)  # normalised
        self._entries = list(entries)
        self._clients = [
            (entry.sender, entry.source)
            for entry in self._entries
            if isinstance(entry.source, JwksClient)
        ]
        self.senders: Mapping[str, TrustedSender] = {
            entry.sender.name: entry.sender for entry in self._entries
        }
        endpoints = endpoints_of(self.url, self._entries)
        self.endpoints: Mapping[str, ReceiverPath] = by_request_path(self.url, endpoints)

    @classmethod
    def build(
        cls,
        url: str,
        senders: Sequence[TrustedSender],
        transport: Transport,
        clock: Callable[[], datetime],
        *,
        before: Trust | None = None,
    ) -> Trust:
        """Return the trust in these senders.

        Keys that the trust `before` this one has fetched are kept for senders whose `jwks_url` and
        `stale_for` are the same.

        Raises:
            ConfigError: The senders cannot be distinguished, or a source of keys is unusable.
        """
        clients = {_source(sender): client for sender, client in before._clients} if before else {}
        entries = (
            Entry(each, clients.get(_source(each)) or sender_keys(each, transport, clock))
            for each in senders
        )
        return cls(url, entries)

    async def close(self, *, but: Trust | None = None) -> None:
        """Cancel the fetches of keys, except those that the trust `but` also uses."""
        kept = {id(client) for _, client in but._clients} if but else set()
        for _, client in self._clients:
            if id(client) not in kept:
                await client.close()

    async def snapshot(self) -> TrustSnapshot:
        """Return the senders with their current keys, fetched if due."""
        held = await asyncio.gather(*map(_keys_of, self._entries))
        return TrustSnapshot(self.url, held)

    def load(self) -> None:
        """Begin to fetch every sender's keys, all at once, without waiting for any."""
        for _, client in self._clients:
            client.load()

    def missing(self) -> dict[str, str]:
        """Return the reasons why senders have no keys, by the senders' names.

        Without senders whose keys are being fetched for the first time, or have expired and were
        not needed since.
        """
        found = {sender.name: client.failing() for sender, client in self._clients}
        return {name: reason for name, reason in found.items() if reason is not None}


async def fetch_keys(stated: Stated) -> list[HeldKeys]:
    """Return the keys that a request names, fetched if due."""
    entries = stated.entries
    if len(entries) > 1:
        # A fetch for one sender must not delay a request of another whose keys are in memory.
        held = [await _keys_of(entry) for entry in entries if _is_in_memory(entry)]
        if any(kid in each.keys for each in held for kid in stated.kids(each.sender)):
            return held
    named = (_keys_of(entry, stated.kids(entry.sender)) for entry in entries)
    return list(await asyncio.gather(*named))


def _source(sender: TrustedSender) -> Hashable:
    return sender.name, sender.jwks_url, sender.stale_for, sender.algorithms


def warn_of_weak_trust(senders: Iterable[TrustedSender]) -> None:
    """Log a warning for each sender that proves no signature, or no audience."""
    for sender in senders:
        if not sender.profile.signed:
            _log.warning(
                "sender %s is trusted as %s at %s: it does not sign, so anybody who learns its"
                " token or credentials can forge its notifications",
                sender.name,
                sender.profile.value,
                sender.path,
            )
        elif not sender.has_keys:
            _log.warning(
                "sender %s is trusted by %s alone at %s: that names no audience, so another"
                " receiver with the same secret or key can replay its notifications to this one",
                sender.name,
                Scheme.STANDARD_WEBHOOKS.value,
                sender.path,
            )


async def _keys_of(entry: Entry, kids: Iterable[str] | None = None) -> HeldKeys:
    """Return a sender's keys, fetched if due: those of some `kids`; None for all."""
    sender, source = entry
    if isinstance(source, HeldKeys):
        return source
    try:
        if kids is None:
            return HeldKeys(sender, await source.keys())
        found = {kid: await source.find(kid) for kid in dict.fromkeys(kids)}
    except KeysUnavailableError as exc:
        return HeldKeys(sender, missing=str(exc))
    return HeldKeys(sender, {kid: keys for kid, keys in found.items() if keys})


def _is_in_memory(entry: Entry) -> bool:
    return isinstance(entry.source, HeldKeys) or entry.source.missing() is None


@checked
def load_trust(url: str, senders: Sequence[TrustedSender]) -> TrustSnapshot:
    """Return a snapshot of senders whose keys are configured or in files; opens no socket.

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths.
        senders: The trusted senders.

    Raises:
        ConfigError: A sender has a `jwks_url` (see `fetch_trust`), or a file is unusable.
    """
    for sender in senders:
        if sender.jwks_url is not None:
            raise ConfigError(
                f"sender {sender.name!r}: jwks_url: load_trust() fetches no keys: expected"
                " jwks_file or keys, or use fetch_trust()"
            )
    return TrustSnapshot(
        url, [HeldKeys(sender=sender, keys=_local_keys(sender)) for sender in senders]
    )


@checked
async def fetch_trust(
    url: str,
    senders: Sequence[TrustedSender],
    *,
    allow: Sequence[str] = (),
    proxy: str | None = None,
    ca_file: str | Path | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> TrustSnapshot:
    """Return a snapshot of senders, with their JWK Sets fetched now.

    A sender whose set cannot be fetched is in it without keys: `verify_notification` refuses it
    with 503 until a later snapshot has them.

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths.
        senders: The trusted senders.
        allow: Hosts that are not checked, for development.
        proxy: An egress proxy, `http://[user:password@]host:port`.
        ca_file: Root certificates in PEM, trusted beside the system's.
        clock: Returns the current time, aware, in UTC.

    Raises:
        ConfigError: A URL or the proxy is refused, or a file is unusable.
    """
    async with (
        closing(key_transport(allow, proxy, ca_file)) as transport,
        closing(Trust.build(url, senders, transport, clock)) as trust,
    ):
        return await trust.snapshot()


def key_transport(allow: Sequence[str], proxy: str | None, ca_file: str | Path | None) -> Transport:
    """Return what fetches JWK Sets. Raises ConfigError: an argument cannot be used."""
    connections = ConnectionOptions(proxy=proxy, ca_file=None if ca_file is None else Path(ca_file))
    return Transport(DestinationPolicy(allow, loopback=True), connections)


def sender_keys(
    sender: TrustedSender, transport: Transport, clock: Callable[[], datetime]
) -> HeldKeys | JwksClient:
    """Return a sender's keys from its file or configuration, or the client of its pinned URL.

    Raises:
        ConfigError: The file cannot be read, holds no usable key, or the URL is refused.
    """
    url = sender.jwks_url
    if url is None:
        return HeldKeys(sender, _local_keys(sender))
    try:
        transport.policy.check(url)
    except DestinationRefusedError as exc:
        advice = exc.advice('allow=["{}"]')
        raise ConfigError(f"sender {sender.name!r}: jwks_url: {exc}{advice}") from exc
    fetch = functools.partial(fetch_jwks, transport)
    return JwksClient(
        url,
        fetch=fetch,
        clock=clock,
        stale_for=sender.stale_for,
        algorithms=sender.algorithms,
    )


def _local_keys(sender: TrustedSender) -> KeysByKid:
    if sender.jwks_file is None:
        return keys_by_kid(sender.keys or ())
    name, path = sender.name, Path(sender.jwks_file)
    try:
        found = parse_jwks_file(read_file(path), path, sender.algorithms)
    except OSError as exc:
        raise ConfigError(f"sender {name!r}: jwks_file: {path}: {exc.strerror}") from exc
    except (JwksError, KeyFileError) as exc:
        raise ConfigError(f"sender {name!r}: jwks_file: {path}: {exc}") from exc
    if found.refused:
        _log.warning("sender %s: jwks_file: %s: left out: %s", name, path, found.left_out())
    return keys_by_kid(found.keys)

"""How a request goes: the phases that it spends its time in, and the one error if it fails."""

from __future__ import annotations

import errno
import ssl
import time
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from pushkit.clock import Timing
from pushkit.errors import (
    AddressRefusedError,
    AnswerTimeoutError,
    ConnectionFailedError,
    EgressProxyError,
    NameLookupError,
    ResourcesExhaustedError,
    TlsError,
    TransportError,
    UrlDecision,
)
from pushkit.net.addresses import EXHAUSTED
from pushkit.net.destination import Destination


class Probe(Timing):
    """Adds up the phases of one request, one after another: each request has one."""

    __slots__ = ("_phase", "_since", "refused")

    def __init__(self) -> None:
        self.resolve = self.connect = self.wait = self.body = self.address = None
        # Why an address of the request was refused; None if none was.
        self.refused: UrlDecision | None = None
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str | None) -> None:
        """End the current phase, and begin another, named as in `Timing`; None begins none."""
        now, ended = time.perf_counter(), self._phase
        if ended is not None:
            spent, before = timedelta(0, now - self._since), getattr(self, ended)
            setattr(self, ended, spent if before is None else before + spent)
        self._phase, self._since = phase, now

    def timing(self) -> Timing:
        """End the current phase, and return all."""
        self.enter(None)
        return self


# Code that opens sockets does not know the request.
current_probe: ContextVar[Probe | None] = ContextVar("pushkit_probe", default=None)


class BrokenAnswerError(Exception):
    """The bytes received are no HTTP answer within the limits; the text quotes none of them."""


class ClosedEarlyError(ConnectionError):
    """The connection ended before the answer's head did."""


class LookupFailedError(OSError):
    """A name could not be looked up."""


class ProxyRefusedError(Exception):
    """The proxy forbids the address, or did not reach it."""


class ProxyFailedError(Exception):
    """The proxy itself failed; the destination may be well."""


_BY_ERRNO: Final[dict[int, type[TransportError]]] = {
    errno.ECONNREFUSED: ConnectionFailedError,
    errno.ETIMEDOUT: AnswerTimeoutError,
    **dict.fromkeys(EXHAUSTED, ResourcesExhaustedError),
}


def transport_error(
    exc: Exception, destination: Destination, *, seconds: float, probe: Probe
) -> TransportError:
    """Return the error for the caller of a request, whose timeout was `seconds`."""
    timing = probe.timing()
    if isinstance(exc, TimeoutError):
        return AnswerTimeoutError(
            f"no complete answer from {destination.origin} within {seconds:g} s", timing=timing
        )
    if probe.refused is not None:
        return AddressRefusedError(
            f"{destination.origin}: {probe.refused.reason}", decision=probe.refused, timing=timing
        )
    return _type_for(exc)(f"{destination.origin}: {_reason(exc)}", timing=timing)


def _type_for(exc: Exception) -> type[TransportError]:
    if isinstance(exc, LookupFailedError):
        return NameLookupError
    if isinstance(exc, ssl.SSLError):
        return TlsError
    if isinstance(exc, ProxyFailedError):
        return EgressProxyError
    if isinstance(exc, OSError):
        return _BY_ERRNO.get(exc.errno or 0, TransportError)
    return TransportError


def _reason(exc: Exception) -> str:
    # Texts of other errors may quote the URL with its query, or the webhook's answer.
    if isinstance(exc, BrokenAnswerError | ClosedEarlyError | ProxyRefusedError | ProxyFailedError):
        return str(exc)
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc.verify_message
    if isinstance(exc, ConnectionResetError) and exc.errno is None:
        return "closed in the TLS handshake"  # asyncio's error has no text
    known = exc.strerror if isinstance(exc, OSError) else None
    return known or f"failed ({type(exc).__name__})"

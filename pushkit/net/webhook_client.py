"""POST to webhooks over kept-alive lanes: what the delivery path needs of HTTP/1.1, and no more.

Names and addresses are judged by the same guard as everywhere, the address once more by the socket
that dials it.

A kept-alive lane may have been closed by its other end while nobody looked. Where that shows before
a byte of an answer came, the request is sent once more over another connection, within the same
deadline, and counts as one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from datetime import timedelta

from pushkit.errors import TransportError
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.dialling import Dialler
from pushkit.net.failures import transport_error
from pushkit.net.guard import Guard, Resolver
from pushkit.net.lane import Lane, Question
from pushkit.net.lanes import Lanes, Way
from pushkit.net.posting import Answer, ConnectionOptions
from pushkit.net.proxy import EgressProxy
from pushkit.net.timing import Probe, current_probe
from pushkit.net.tls import tls_context


class WebhookClient:
    """Connections to webhooks under one destination policy.

    No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
    decompressed, and answers are read up to a bound; one deadline is over all of it, looking up
    the name included.

    Raises:
        ConfigError: The proxy or the file is not what it should be.
    """

    def __init__(self, policy: DestinationPolicy, options: ConnectionOptions | None = None) -> None:
        options = options or ConnectionOptions()
        self.policy = policy
        self._resolver = Resolver(options.resolver)
        self._dialler = Dialler(
            Guard(policy, self._resolver, is_own=options.is_own),
            self._resolver,
            EgressProxy.parse(options.proxy) if options.proxy else None,
        )
        self._tls = tls_context(ca_file=options.ca_file)
        self._lanes = Lanes(most=options.most, most_of_one_way=options.most_per_host)

    async def post(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],  # all of them but `Host` and `Content-Length`
        body: bytes,
        *,
        # Over everything, from looking up the name to the end of the answer.
        timeout: timedelta,  # noqa: ASYNC109  # the deadline of this attempt, enforced here
        # Roots and client certificate for this destination, from `tls_context`; connections are
        # shared only under the same one.
        tls: ssl.SSLContext | None = None,
        # How long the body of the answer may take once its head is there; None for as long as
        # `timeout` leaves it. What is not there by then is dropped, and the connection with it.
        body_within: timedelta | None = None,
    ) -> Answer:
        """Send one POST and return the answer, whatever its status.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        url = destination.url
        context = (tls or self._tls) if url.scheme == "https" else None
        way = Way(url.scheme, url.host, url.port, destination.allowed_by_name, context)
        question = Question(
            _head(destination, headers, len(body)),
            body,
            asyncio.get_running_loop().time() + timeout.total_seconds(),
            None if body_within is None else body_within.total_seconds(),
        )
        del headers  # they stand in the question: fewer objects wait for the answer
        probe = Probe()
        try:
            lane = self._lanes.take_idle(way) or await self._open(way, question, probe)
            try:
                return await lane.ask(question, probe)
            except (ConnectionError, ssl.SSLError):
                if lane.asked == 1 or lane.heard:
                    raise
            lane = await self._open(way, question, probe, anew=True)
            return await lane.ask(question, probe)
        except Exception as exc:  # whatever an answer brings about is its sender's doing
            seconds = timeout.total_seconds()
            raise transport_error(exc, destination, seconds=seconds, probe=probe) from exc

    async def close(self) -> None:
        """Close all lanes."""
        self._lanes.close()
        await self._resolver.close()

    async def _open(
        self, way: Way, question: Question, probe: Probe, *, anew: bool = False
    ) -> Lane:
        """Return a lane for a request as soon as there is one; `anew`, one that is dialled now."""
        probe.enter(None)
        async with asyncio.timeout_at(question.until):
            if anew:  # others were left alone as long as the one that was closed, or longer
                lane = await self._lanes.take_new(way)
            else:
                lane = await self._lanes.take(way)
            if not lane.asked:
                await self._dial(way, lane, probe)
        return lane

    async def _dial(self, way: Way, lane: Lane, probe: Probe) -> None:
        probe.enter("connect")
        reset = current_probe.set(probe)
        try:
            await self._dialler.dial(way, lane)
        except BaseException:
            lane.close()
            raise
        finally:
            current_probe.reset(reset)


def _head(destination: Destination, headers: Sequence[tuple[str, str]], length: int) -> bytes:
    """Return request line and fields.

    Raises:
        TransportError: A field has a line break or a zero in it.
    """
    url = destination.url
    lines = [f"{name}: {value}" for name, value in headers]
    flat = "".join(lines)
    if "\r" in flat or "\n" in flat or "\0" in flat:
        raise TransportError(f"{destination.origin}: a header field holds a line break or a zero")
    first = (f"POST {url.target} HTTP/1.1", f"Host: {url.authority}")
    return "\r\n".join([*first, *lines, f"Content-Length: {length}", "", ""]).encode()

"""HTTP requests to destinations that others chose: as much of HTTP/1.1 as they take, and no more.

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

from pushkit.errors import PushkitError, TransportError
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.dialling import Dialler
from pushkit.net.failures import transport_error
from pushkit.net.guard import Guard, Names
from pushkit.net.lane import Lane, Question
from pushkit.net.lanes import Lanes, Way
from pushkit.net.posting import MAX_ANSWER_BYTES, Answer, ConnectionOptions
from pushkit.net.proxy import EgressProxy
from pushkit.net.timing import Probe, current_probe
from pushkit.net.tls import tls_context
from pushkit.version import USER_AGENT


class Transport:
    """Connections under one destination policy, kept alive in lanes.

    No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
    decompressed, and answers are read up to a bound; one deadline is over all of it, looking up
    the name included.

    Raises:
        ConfigError: The proxy or the file is not what it should be.
    """

    def __init__(self, policy: DestinationPolicy, options: ConnectionOptions | None = None) -> None:
        options = options or ConnectionOptions()
        self.policy = policy
        self.options = options
        self._names = Names(options.resolver)
        self._dialler = Dialler(
            Guard(policy, is_own=options.is_own),
            self._names,
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
        question = Question(
            _head("POST", destination, [*headers, ("Content-Length", str(len(body)))]),
            body,
            asyncio.get_running_loop().time() + timeout.total_seconds(),
            None if body_within is None else body_within.total_seconds(),
        )
        del headers  # they stand in the question: fewer objects wait for the answer
        return await self._ask(destination, question, timeout, tls)

    async def get(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],  # all of them but `Host`
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as for `post`
        max_body_bytes: int = MAX_ANSWER_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send one GET and return the answer; the rest is as for `post`."""
        until = asyncio.get_running_loop().time() + timeout.total_seconds()
        question = Question(
            _head("GET", destination, headers), b"", until, max_body_bytes=max_body_bytes
        )
        return await self._ask(destination, question, timeout, tls)

    async def get_document(
        self,
        url: str,
        media_types: str,  # what `Accept` says
        *headers: tuple[str, str],  # what is said besides
        timeout: timedelta,  # noqa: ASYNC109  # as for `post`
        max_body_bytes: int = MAX_ANSWER_BYTES,
        error: type[PushkitError],  # what is raised for an answer that cannot be read
    ) -> Answer:
        """Get a document as it stands, or the answer of another status than 200.

        Raises:
            DestinationRefusedError: The policy refuses the URL.
            PushkitError: An `error`: it is compressed, although that was not accepted, broke off,
                or is too large.
            TransportError: No answer.
        """
        wanted = [("Accept", media_types), ("Accept-Encoding", "identity")]
        wanted += [("User-Agent", USER_AGENT), *headers]
        answer = await self.get(
            self.policy.check(url), wanted, timeout=timeout, max_body_bytes=max_body_bytes
        )
        if answer.status == 200:
            # A decompression bomb needs a decompressor; there is none.
            encodings = answer.headers.all("Content-Encoding")
            if any(encoding.strip().lower() != "identity" for encoding in encodings):
                raise error("the answer is compressed, expected Content-Encoding identity")
            if not answer.complete:
                raise error(f"the answer broke off, or is longer than {max_body_bytes} bytes")
        return answer

    async def _ask(
        self,
        destination: Destination,
        question: Question,
        timeout: timedelta,  # noqa: ASYNC109  # what the question has, for the message
        tls: ssl.SSLContext | None,
    ) -> Answer:
        url = destination.url
        context = (tls or self._tls) if url.scheme == "https" else None
        way = Way(url.scheme, url.host, url.port, destination.allowed_by_name, context)
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
        await self._names.close()

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


def _head(method: str, destination: Destination, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return request line and fields, `Host` among them.

    Raises:
        TransportError: A field has a line break or a zero in it.
    """
    url = destination.url
    lines = [f"{name}: {value}" for name, value in headers]
    flat = "".join(lines)
    if "\r" in flat or "\n" in flat or "\0" in flat:
        raise TransportError(f"{destination.origin}: a header field holds a line break or a zero")
    first = (f"{method} {url.target} HTTP/1.1", f"Host: {url.authority}")
    # What a server sent of bytes that are no text, an entity tag, goes back as it came.
    return "\r\n".join([*first, *lines, "", ""]).encode("utf-8", "surrogateescape")

"""The gateway as a service: its parts, opened in their order, and closed in the reverse one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from pushkit.a2a import WireVersion
from pushkit.cards.origins import CardTrust
from pushkit.cards.trust import load_card_trust
from pushkit.delivery.sender import PushSender
from pushkit.errors import ConfigError, PushkitError
from pushkit.gateway.calls import Binding, Place
from pushkit.gateway.card import CardRewriter
from pushkit.gateway.identity import Identity
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.proxy import Gateway
from pushkit.gateway.upstream import Upstream, UpstreamError
from pushkit.gateway.watcher import Watcher
from pushkit.integrations.push_config_api.http import EXTENSIONS
from pushkit.keys.ring import KeyRing
from pushkit.logs import RepeatedLog
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.url import is_http_url

_log: Final = logging.getLogger("pushkit.gateway")

_ASKED_EVERY: Final = 1.0  # seconds, until the agent answers for the first time
_ASKED_AGAIN: Final = 30.0  # seconds


class Service:
    """A gateway that serves.

    Args:
        upstream: The agent's base URL.
        sender: Stores configs and updates, and delivers; open.
        ring: Returns the keys that sign a card.
        public_url: The base URL under which clients reach the gateway.
        options: How it passes requests on.

    Raises:
        ConfigError: A setting is wrong, or nothing says who a caller is.
    """

    def __init__(
        self,
        upstream: str,
        *,
        sender: PushSender,
        ring: Callable[[], KeyRing],
        public_url: str,
        options: GatewayOptions,
    ) -> None:
        if not is_http_url(public_url):
            raise ConfigError(
                "public_url: expected the URL under which clients reach the gateway, since the"
                " issuer is no URL"
            )
        self.upstream = Upstream(upstream, options)
        # What the operator named is reached wherever it is: the guard is for clients' webhooks.
        named = [options.identity_jwks] if options.identity_jwks else []
        origins = {} if options.trust is None else load_card_trust(options.trust)
        jwks_urls = [url for each in origins.values() for url in each.jwks_urls]
        self._transport = Transport(DestinationPolicy.naming(*named, *jwks_urls))
        trust = CardTrust(origins, transport=self._transport) if origins else None
        self._identity = Identity(options, self._transport)
        self.watcher = Watcher(sender, self.upstream, options)
        cards = CardRewriter(
            upstream=self.upstream.url,
            public_url=public_url.rstrip("/"),
            ring=ring,
            trust=trust,
            extensions=EXTENSIONS,
        )
        self.gateway = Gateway(
            sender=sender,
            upstream=self.upstream,
            identity=self._identity,
            watcher=self.watcher,
            cards=cards,
            options=options,
        )
        self._is_shared = options.shared_configs
        self.fault = "it was not asked yet"

    async def open(self) -> None:
        """Wait for the agent, and read its card.

        Raises:
            CardUnavailableError: The agent's card cannot be served.
        """
        await self.upstream.open()
        try:
            await self._learn()
        except BaseException:
            await self._close()
            raise

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[web.Server]:
        """Yield what answers requests, once open; then hand the watched tasks over, and close."""
        self.watcher.start()
        asking = asyncio.create_task(self._keep_asking(), name="pushkit-gateway-card")
        server = web.Server(self.gateway.handle, access_log=None, handler_cancellation=True)
        try:
            yield server
        finally:
            asking.cancel()
            await server.shutdown(timeout=5.0)
            await self.gateway.finish()
            await self.watcher.stop()
            await self._close()

    async def _close(self) -> None:
        await self._identity.close()
        await self._transport.close()
        await self.upstream.close()

    async def _learn(self) -> None:
        """Read the agent's card, as soon as the agent answers; say whom it lets see a task."""
        waiting = RepeatedLog(_log)
        while True:
            try:
                facts = await self.gateway.learn()
                break
            except UpstreamError as exc:
                self.fault, why = str(exc), exc.__cause__ or exc
                waiting.log("agent", logging.WARNING, "waiting for %s: %s", self.upstream.url, why)
            await asyncio.sleep(_ASKED_EVERY)
        self.fault = ""
        rpc = [(Binding.JSON_RPC, path or "/") for path in facts.rpc_paths]
        rest = [(Binding.HTTP_JSON, path) for path in facts.rest_bases]
        binding, path = (rpc + rest)[0]
        with contextlib.suppress(UpstreamError):
            if not await self.upstream.asks_who_calls(Place(WireVersion.V1_0, binding, path)):
                whom = (
                    "everybody shares its push configs"
                    if self._is_shared
                    else "everybody may set push configs for every task whose id is known"
                )
                _log.warning("the agent shows tasks to callers without credentials: %s", whom)

    async def _keep_asking(self) -> None:
        """Ask for the agent's card from time to time: it may have changed, or be out of reach."""
        while True:
            await asyncio.sleep(_ASKED_AGAIN)
            try:
                await self.gateway.learn()
                self.fault = ""
            except PushkitError as exc:
                self.fault = str(exc)

    def degraded(self) -> dict[str, str]:
        """Return why the agent cannot be reached, by part; empty if it can."""
        return {"agent": self.fault} if self.fault else {}

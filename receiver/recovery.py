"""Asking an agent to send again what never arrived: `urn:pushkit:recover:v1` (docs/extensions)."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import MalformedJsonError, PushkitError, TransportError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.version import USER_AGENT
from receiver.inbox.model import Notification

_TIMEOUT: Final = timedelta(seconds=30)
_METHOD_NOT_FOUND: Final = -32601  # JSON-RPC: the agent knows no configs to send again


class RecoveryFailedError(PushkitError, code="recovery_failed"):
    """An agent did not send again what was asked for. Asking again is harmless.

    Attributes:
        refused: Whether the agent refused this config: it may send those of others.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Recovery:
    """Asks one agent to send again what never arrived.

        recovery = Recovery("https://agent.example.com/a2a", token="…")
        receiver.on_update(senders=["agent"])(recovery.missing)

    It connects to this URL's host and port only, and follows no redirect. Close it at the end.

    Args:
        url: Where the agent's push-config API answers JSON-RPC. The operator names it: `http` and
            internal addresses are allowed.
        token: The Bearer token of the client whose configs they are, if the agent wants one.
        proxy: An egress proxy, `http://[user:password@]host:port`; not for hosts on this machine.
        ca_file: Root certificates in PEM, trusted beside the system's.

    Raises:
        ConfigError: Not a URL, or the proxy or the file of roots cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        proxy: str | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        policy = DestinationPolicy.naming(url)
        roots = None if ca_file is None else Path(ca_file)
        self._transport = Transport(policy, ConnectionOptions(proxy=proxy, ca_file=roots))
        self._destination = policy.check(url)
        self._headers = [("Content-Type", "application/json"), ("User-Agent", USER_AGENT)]
        if token is not None:
            self._headers.append(("Authorization", f"Bearer {token}"))

    async def missing(self, notification: Notification) -> None:
        """Ask for the updates that are missing before a notification, if any are: a callback.

        Raises:
            RecoveryFailedError: As `ask`. The callback is called again, as the receiver retries.
        """
        task_id, seq, missing = notification.task_id, notification.seq, notification.missing
        if task_id is not None and seq is not None and missing:
            await self.ask(task_id, notification.config_id, from_seq=seq - missing, to_seq=seq - 1)

    async def ask(
        self, task_id: str, config_id: str | None, *, from_seq: int, to_seq: int | None = None
    ) -> int:
        """Ask for the notifications of a config in a range; return how many are sent again.

        Raises:
            RecoveryFailedError: No answer, a refusal, or an answer that is none.
        """
        params: JsonObject = {"taskId": task_id}
        params |= {"id": config_id} if config_id else {}
        params |= {"toSeq": to_seq} if to_seq is not None else {}
        number, next_seq = 0, from_seq
        while True:
            result = await self._call({**params, "fromSeq": next_seq})
            seqs, rest = result.get("seqs"), result.get("nextSeq")
            number += len(seqs) if isinstance(seqs, list) else 0
            # A hostile agent may repeat a number, or count on beyond the range.
            if not isinstance(rest, int) or not next_seq < rest <= (to_seq or rest):
                return number
            next_seq = rest

    async def _call(self, params: JsonObject) -> JsonObject:
        request: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "RecoverPushNotifications"}
        body, origin = json.dumps(request | {"params": params}).encode(), self._destination.origin
        try:
            answer = await self._transport.post(
                self._destination, self._headers, body, timeout=_TIMEOUT
            )
            document = read_json_object(answer.body) if answer.status == 200 else {}
        except (TransportError, MalformedJsonError) as exc:
            raise RecoveryFailedError(f"{origin}: {exc}") from exc
        result: JsonValue = document.get("result")
        if not isinstance(result, dict):
            error = document.get("error")
            code = error.get("code") if isinstance(error, dict) else f"status {answer.status}"
            raise RecoveryFailedError(
                f"{origin} answered {code}, expected a result: -32601 or 404 is an agent without"
                " this extension, -32001 or 401 a config of another client, -32602 a config that is"
                " disabled, or a client that has used up its day",
                refused=isinstance(error, dict) and code != _METHOD_NOT_FOUND,
            )
        return result

    async def close(self) -> None:
        """Close its connections."""
        await self._transport.close()

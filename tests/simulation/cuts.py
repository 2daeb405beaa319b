"""Cuts: guarantees that `removals` takes out, each with the code behind it and a replacement."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CUTS", "Cut", "Edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of text that a module contains exactly once."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A guarantee, and the edits that take it out."""

    name: str
    promise: str
    edits: tuple[Edit, ...]


def _cut(name: str, promise: str, module: str, *texts: tuple[str, str]) -> Cut:
    return Cut(name, promise, tuple(Edit(module, old, new) for old, new in texts))


_LEASES = "pushkit.outbox.leases"
_SETTLING = "pushkit.outbox.settling"
_STATES = "pushkit.outbox.states"
_HEADS = "pushkit.outbox.heads"
_ENQUEUE = "pushkit.delivery.enqueue"
_ATTEMPT = "pushkit.delivery.attempt"
_WORKER = "pushkit.delivery.worker"
_SETTLE = "pushkit.delivery.settle"
_SUBSCRIPTIONS = "pushkit.subscriptions.store"
_SQLITE = "pushkit.storage.sqlite"
_DISPATCHER = "receiver.callbacks.dispatcher"
_INBOX = "receiver.inbox.store"
_CALLBACK_LEASES = "receiver.callbacks.leases"
_VERIFY = "receiver.verification"

_ANY_CLAIM = (
    ('f"claims = 1 AND id IN (', 'f"id IN ('),
    ("(id = ${n} AND claims = ${n + 1})", "(id = ${n} AND ${n + 1} > 0)"),
)
_UNLOCKED = (
    "locked = yield from self._subscriptions.lock_all([each.id for each in found])",
    "locked = {each.id: each for each in found}",
)

CUTS = (
    # --- claims and leases ----------------------------------------------------------------------
    _cut(
        "fencing",
        "A result is dropped unless its worker still holds the lease.",
        _SETTLING,
        (
            "WHERE lease_worker = $7 AND state = 'in_flight'",
            "WHERE CAST($7 AS TEXT) IS NOT NULL AND state = 'in_flight'",
        ),
        *_ANY_CLAIM,
    ),
    _cut(
        "claim number",
        "A result of an earlier claim of the same worker is dropped.",
        _SETTLING,
        *_ANY_CLAIM,
    ),
    _cut(
        "lease",
        "A claimed delivery belongs to its worker until its lease ends.",
        _LEASES,
        (
            'has_expired=any(row["until"] <= now for row in leased)',
            "has_expired=bool(leased)",
        ),
        (
            "AND lease_until <= $1 FOR UPDATE SKIP LOCKED",
            "AND lease_until > $1 - $1 FOR UPDATE SKIP LOCKED",
        ),
    ),
    _cut(
        "lease end",
        "Any worker may claim a delivery once its lease has ended.",
        _LEASES,
        ('has_expired=any(row["until"] <= now for row in leased)', "has_expired=False"),
    ),
    Cut(
        "claim once",
        "Of two simultaneous claims, only one gets the row.",
        (
            Edit(
                _LEASES,
                "AND state = 'pending' FOR UPDATE SKIP LOCKED) RETURNING {DELIVERY}",
                ") RETURNING {DELIVERY}",
            ),
            Edit(
                _STATES,
                "    (DeliveryState.PENDING,),\n    DeliveryState.IN_FLIGHT,",
                "    (DeliveryState.PENDING, DeliveryState.IN_FLIGHT),\n    DeliveryState.IN_FLIGHT,",
            ),
            Edit(
                "pushkit.outbox.parking", '_LOCKED = " FOR UPDATE OF d SKIP LOCKED"', '_LOCKED = ""'
            ),
        ),
    ),
    Cut(
        "skip locked",
        "A claim does not wait for locked rows.",
        (
            Edit(
                _LEASES,
                "AND state = 'pending' FOR UPDATE SKIP LOCKED) RETURNING {DELIVERY}",
                "AND state = 'pending' FOR UPDATE) RETURNING {DELIVERY}",
            ),
            Edit(
                "pushkit.outbox.parking",
                '_LOCKED = " FOR UPDATE OF d SKIP LOCKED"',
                '_LOCKED = " FOR UPDATE OF d"',
            ),
        ),
    ),
    # --- shares ---------------------------------------------------------------------------------
    _cut(
        "fair share",
        "An owner leaves a quarter of the slots to other owners.",
        "pushkit.outbox.shares",
        (
            "return held < _TIMES_AS_MANY * free and (held == 0 or free > reserved)",
            "return free > 0",
        ),
    ),
    _cut(
        "last slots",
        "Owners with many slots together leave some to owners without any.",
        "pushkit.outbox.shares",
        ("    return slots // 8\n", "    return 0\n"),
    ),
    _cut(
        "slots of removed deliveries",
        "A delivery removed during its attempt keeps its slot until the attempt ends.",
        _WORKER,
        ("                held=self.slots.held(),\n", ""),
    ),
    _cut(
        "turns of owners",
        "Among owners with equally many slots, the one that used the least recently comes first.",
        "pushkit.outbox.shares",
        ("return self._used.get(owner, -math.inf)", "return 0.0"),
    ),
    _cut(
        "turns of queues",
        "A chain ends when a delivery of another queue waits for a slot.",
        "pushkit.scheduling.pump",
        ("self._slots.note_waiting()  # or", "pass  # or"),
    ),
    _cut(
        "parking",
        "Deliveries that wait for their destination do not delay others.",
        _LEASES,
        ("        if is_full:\n            window +=", "        if False:\n            window +="),
    ),
    _cut(
        "many destinations",
        "Many destinations of one owner do not delay other owners.",
        _LEASES,
        ("firsts += yield from self._heads_of_next_owners(self.destinations // 2)", "pass"),
    ),
    _cut(
        "reserved quota",
        "The end of a task is stored even if its quota is used up.",
        _ENQUEUE,
        ("if notice.is_last and not queue.ended:", "if False:"),
    ),
    # --- order ----------------------------------------------------------------------------------
    _cut(
        "head passing",
        "After a delivery is settled, the oldest one of its queue is next.",
        _HEADS,
        (
            "AND d.{UNFINISHED} ORDER BY d.seq LIMIT 1)",
            "AND d.{UNFINISHED} ORDER BY d.seq DESC LIMIT 1)",
        ),
    ),
    _cut(
        "order",
        "A delivery waits for the one before it in its queue.",
        "pushkit.delivery.queues",
        (
            "head = queue.oldest is None and not recipient.paused",
            "head = not recipient.paused",
        ),
    ),
    _cut(
        "chain goes back",
        "Deliveries of a chain that follow a failed one are put back behind it.",
        "pushkit.delivery.chain",
        (
            "                if current.result.outcome is not Outcome.DELIVERED:\n"
            "                    self._is_open = False\n",
            "",
        ),
    ),
    _cut(
        "chain without gaps",
        "Only the next delivery of a queue joins its chain.",
        "pushkit.delivery.chain",
        ("                or seq != self._last_seq + 1\n", ""),
    ),
    _cut(
        "past a lease",
        "A delivery in flight is not overtaken by later ones of its queue.",
        _SETTLING,
        ("        \" OR b.state = 'in_flight')))\"\n", '        ")))"\n'),
    ),
    _cut(
        "stale chain",
        "A chain ends soon after its subscription is paused, removed or changed.",
        "pushkit.delivery.chain",
        ("_KNOWN_FOR: Final = 0.25", "_KNOWN_FOR: Final = 1e9"),
    ),
    _cut(
        "one of a subscription",
        "A delivery in flight stays the head when another one is brought back.",
        _HEADS,
        (
            "ORDER BY CASE WHEN state = 'in_flight' THEN 0 ELSE 1 END, seq LIMIT 1",
            "ORDER BY seq LIMIT 1",
        ),
    ),
    _cut(
        "held subscription",
        "Settling locks the subscription, so that its queue never loses its head.",
        _SUBSCRIPTIONS,
        (
            '_by_ids(columns, ids, _current, f"FOR UPDATE{_skip_locked_unless(wait)}")',
            "_by_ids(columns, ids, _current)",
        ),
    ),
    _cut(
        "lock order",
        "Several subscriptions are always locked in the same order.",
        _SUBSCRIPTIONS,
        (
            " ORDER BY s.id FOR UPDATE OF s{_skip_locked_unless(wait)}",
            " ORDER BY s.id {__import__('random').choice(('', 'DESC'))} FOR UPDATE OF s{_skip_locked_unless(wait)}",
        ),
    ),
    _cut(
        "pause",
        "Nothing of a paused subscription is sent.",
        "pushkit.delivery.queues",
        (
            "head = queue.oldest is None and not recipient.paused",
            "head = queue.oldest is None",
        ),
    ),
    # --- attempts -------------------------------------------------------------------------------
    _cut(
        "requests count",
        "Only a request uses up the schedule.",
        _SETTLING,
        ("    int(result.started_at is not None),\n", "    1,\n"),
    ),
    _cut(
        "local fault",
        "A local fault is retried without limit.",
        _ATTEMPT,
        (
            "outcome=Outcome.LOCAL_FAULT, error=code, retry_at=again_at",
            "outcome=Outcome.DEAD if delivery.fruitless_claims > 2 else Outcome.LOCAL_FAULT,"
            " error=code, retry_at=again_at",
        ),
    ),
    _cut(
        "crash is no attempt",
        "A crash does not use up the schedule.",
        _STATES,
        ("{_NO_LEASE}, last_error = $1,", "{_NO_LEASE}, attempts = attempts + 1, last_error = $1,"),
    ),
    _cut(
        "back-off",
        "After a failure the next attempt waits as the schedule says.",
        _ATTEMPT,
        (
            "retry_at=retry_at and max(retry_at, wait_until or retry_at),",
            "retry_at=wait_until or now,",
        ),
    ),
    _cut(
        "Retry-After",
        "`Retry-After` postpones all deliveries of its owner to that destination.",
        _ATTEMPT,
        ("wait_until = now + wait if wait else None", "wait_until = None"),
    ),
    _cut(
        "time-out",
        "An attempt ends in time, whatever the webhook does.",
        "pushkit.net.transport",
        (
            "asyncio.get_running_loop().time() + timeout.total_seconds(),",
            "asyncio.get_running_loop().time() + timeout.total_seconds() + 1e6,",
        ),
    ),
    _cut(
        "no redirect",
        "A redirect is not followed.",
        "pushkit.net.transport",
        (
            "        del headers  # the request has them: fewer objects live until the answer\n"
            "        return await self._send(destination, request, timeout, tls)\n",
            "        answer = await self._send(destination, request, timeout, tls)\n"
            "        moved = answer.headers.one('Location')\n"
            "        if moved is None:\n"
            "            return answer\n"
            "        return await self.post(self.policy.check(moved), headers, body, timeout=timeout)\n",
        ),
    ),
    _cut(
        "guard",
        "Only public addresses are dialled.",
        "pushkit.net.guard",
        ("        if decision.is_refusal:\n", "        if False:\n"),
    ),
    _cut(
        "name at dial",
        "A name is looked up for each connection.",
        "pushkit.net.guard",
        (
            "_LOOKUP_TIMEOUT: Final =",
            "_KNOWN: dict[str, Sequence[str]] = {}\n_LOOKUP_TIMEOUT: Final =",
        ),
        (
            "                addresses = await self._resolver.resolve(host)\n",
            "                if host not in _KNOWN:\n"
            "                    _KNOWN[host] = await self._resolver.resolve(host)\n"
            "                addresses = _KNOWN[host]\n",
        ),
    ),
    _cut(
        "unasked answer",
        "A connection on which an unrequested answer came is not used again.",
        "pushkit.net.connection",
        (
            "_is_written:\n            self.close()\n            return\n        self.has_received",
            "_is_written:\n            return\n        self.has_received",
        ),
    ),
    _cut(
        "second answer",
        "A connection that sent two answers to one request is not used again.",
        "pushkit.net.connection",
        (
            "            self._keep = False\n\n    def on_header",
            "            pass\n\n    def on_header",
        ),
    ),
    # --- subscriptions and operators ------------------------------------------------------------
    _cut(
        "410",
        "A webhook that answered 410 gets nothing more.",
        _SETTLE,
        (
            "yield from self.outbox.cancel_subscription(current.id, now, CancelledBy.DISABLED)",
            "pass",
        ),
    ),
    _cut(
        "removed",
        "Removing a subscription cancels its unfinished deliveries.",
        "pushkit.delivery.registrar",
        (
            "yield from self.outbox.cancel_subscription(subscription.id, now, CancelledBy.REMOVED)",
            "pass",
        ),
    ),
    _cut(
        "claims grow",
        "A delivery that is brought back keeps its number of claims.",
        _STATES,
        ("origin = $3, fruitless_claims = 0", "origin = $3, fruitless_claims = 0, claims = 0"),
    ),
    # --- what is stored -------------------------------------------------------------------------
    _cut(
        "idempotency",
        "The same key stores nothing twice.",
        _ENQUEUE,
        (
            "earlier = [] if key is None else self._enqueued.setdefault(key, [])",
            "earlier = []",
        ),
    ),
    _cut(
        "seq of a config",
        "A config gives no seq twice, also if it is removed while another client sets it.",
        "pushkit.delivery.registrar",
        _UNLOCKED,
        ("if subscription.revision == 0:", "if before is None:"),
    ),
    _cut(
        "destination of a config",
        "Unfinished deliveries follow their config, also if two clients change it at once.",
        "pushkit.delivery.registrar",
        _UNLOCKED,
    ),
    _cut(
        "uncertain commit",
        "A transaction that may have been committed is not run again.",
        "pushkit.storage.postgres",
        (
            "is_final = isinstance(exc, CommitUncertainError)",
            "is_final = False",
        ),
    ),
    _cut(
        "no secret in errors",
        "No error contains the password of the database.",
        "pushkit.storage.postgres",
        (
            'f"PostgreSQL: cannot connect to {host_of(self._dsn)}: {reason}"',
            'f"PostgreSQL: cannot connect to {self._dsn}: {reason}"',
        ),
    ),
    _cut(
        "savepoint",
        "A script that fails in a group stores nothing.",
        _SQLITE,
        (
            '    if batch.error is not None:\n        connection.execute("ROLLBACK TO batch")\n',
            "",
        ),
    ),
    _cut(
        "failed commit",
        "All callers that wait for a failed commit get its error.",
        _SQLITE,
        (
            "        batch.error, batch.is_final = error, True",
            "        pass",
        ),
    ),
    # --- workers that end -----------------------------------------------------------------------
    _cut(
        "late once",
        "A late attempt is recorded once, however often recording it is tried.",
        "pushkit.outbox.attempts",
        ("        is_there |= any(", "        is_there |= False and any("),
    ),
    _cut(
        "drain",
        "A stopping sender gives its attempts time to end.",
        "pushkit.delivery.sender",
        (
            "await self._worker.finish(within=self.options.drain)",
            "await self._worker.pump.abandon()",
        ),
    ),
    _cut(
        "persistent settling",
        "An answered delivery is settled however long the database is unavailable.",
        _WORKER,
        (
            "            within=self._options.lease_margin,\n",
            "            within=timedelta(0),\n",
        ),
    ),
    _cut(
        "callback drain",
        "A stopping receiver gives its callbacks time to end.",
        "receiver.runtime",
        (
            "await self.dispatcher.finish(within=timedelta(seconds=max(left, 0)))",
            "await self.dispatcher.finish(within=timedelta(0))",
        ),
    ),
    _cut(
        "migration check",
        "After an upgrade that may not roll, old programs do not write.",
        _SQLITE,
        (
            "        if found:\n            raise too_old_to_write",
            "        if False:\n            raise too_old_to_write",
        ),
    ),
    # --- receiver -------------------------------------------------------------------------------
    Cut(
        "called back once",
        "A retry of an accepted notification runs no callback again: by the replay memory, the inbox, and"
        " the record of each callback.",
        (
            Edit(
                "receiver.replay.memory",
                "    return Replay.DUPLICATE\n",
                "    return Replay.FRESH\n",
            ),
            Edit(
                _INBOX,
                "ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING id, sender",
                "ON CONFLICT (sender, delivery_id) DO UPDATE"
                " SET status = 'received', head = 1 RETURNING id, sender",
            ),
            Edit(
                "receiver.service_state",
                "        if found is None or found[1] != body_sha256:\n",
                "        if True:\n",
            ),
            Edit(_DISPATCHER, "if not claimed.had_by(callback.name)]", "]"),
        ),
    ),
    Cut(
        "one transaction",
        "An id is remembered in the transaction that stores its notification.",
        (
            Edit(
                "receiver.accepting",
                "        if self._redis is not None:\n            return self._reserve",
                "        if True:\n            return self._reserve",
            ),
            Edit("receiver.accepting", "redis: RedisReplay, ", "redis: RedisReplay | None, "),
            Edit(
                "receiver.accepting",
                "            reserved = await redis.reserve(candidate.seen)\n",
                "            now = await self._database.read(self._database.now())\n"
                "            remember = remember_ids([candidate.seen], now)\n"
                "            [replay] = await self._database.write(remember)\n"
                "            if isinstance(replay, InboundError):\n"
                "                raise replay\n"
                '            reserved = None if replay.value == "duplicate" else candidate.seen\n',
            ),
            Edit("receiver.accepting", "await redis.release(reserved)", "pass"),
            Edit("receiver.accepting", "await redis.commit(reserved)", "pass"),
            Edit(
                "receiver.accepting",
                "            if replay is Replay.FRESH:\n",
                "            if each.result is None:\n",
            ),
        ),
    ),
    _cut(
        "token",
        "A signed notification without a token of the receiver is refused.",
        _VERIFY,
        (
            "if secret.token and not secret.static_token and not by_token:",
            "if False:",
        ),
    ),
    _cut(
        "timestamp",
        "A notification signed too long ago, or in the future, is refused.",
        _VERIFY,
        ("    check_times(claims, now, tolerance=sender.tolerance)\n", ""),
    ),
    _cut(
        "audience",
        "A notification signed for another webhook is refused.",
        _VERIFY,
        ("        check_audience(claims, audiences, head.target)\n", ""),
    ),
    _cut(
        "revoked keys",
        "A revoked key is not published.",
        "pushkit.keys.ring",
        (
            "        if entry.revoked_at is not None and entry.revoked_at <= now:\n"
            "            return KeyState.REVOKED\n",
            "",
        ),
    ),
    _cut(
        "id conflict",
        "A known id with another body is refused.",
        "receiver.replay.memory",
        ("if known != seen.body_sha256:", "if False:"),
    ),
    _cut(
        "inbox bound",
        "The unfinished notifications of one sender in an inbox are limited.",
        "receiver.inbox.capacity",
        ("        if left[sender] <= 0:\n", "        if False:\n"),
    ),
    _cut(
        "order of callbacks",
        "The notifications of a task are called back one at a time, the oldest first.",
        "receiver.accepting",
        ("if each.task is None or each.task not in behind:", "if True:"),
    ),
    _cut(
        "callback done",
        "A callback that is done with a notification is not called with it again.",
        _DISPATCHER,
        ("if not claimed.had_by(callback.name)]", "]"),
    ),
    _cut(
        "callback lease",
        "A long callback keeps its lease.",
        _CALLBACK_LEASES,
        ("await asyncio.sleep(pause.total_seconds())", "await asyncio.sleep(1e9)"),
        ("return tuple(self._held)", "return ()"),
    ),
    _cut(
        "next callback",
        "A receiver frozen for longer than its lease calls no further callback.",
        _DISPATCHER,
        ("                if not is_ours:\n", "                if False:\n"),
    ),
    _cut(
        "callback time-out",
        "A callback that hangs is cancelled.",
        "receiver.callbacks.calls",
        ("        if limit is not None:\n", "        if False:\n"),
    ),
)

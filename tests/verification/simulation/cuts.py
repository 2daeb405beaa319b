"""Cuts: guarantees that `removals` takes out, each with how, and with what has to be seen then.

The guarantee is what lasts. Where its code moves, only the edits of its cut move with it: they name
functions, not their text, and one that finds nothing to change fails by the name of its cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.verification.simulation.edits import (
    Edit,
    adds,
    answers,
    asks_not,
    calls,
    ignores,
    passes,
    returns,
    sets,
    skips,
    sql,
    uses,
)

__all__ = ["CUTS", "Cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A guarantee, and the edits that take it out."""

    name: str
    promise: str  # the guarantee, as a sentence
    seen: tuple[str, ...]  # words of the violations of which one must be seen without it
    edits: tuple[Edit, ...]


_RULES = "pushkit.queue.rules"
_TABLES = "pushkit.queue.tables"
_CLAIMS = "pushkit.queue.leases:Claims"
_HELD = "pushkit.queue.held"
_SCHEDULER = "pushkit.queue.scheduler"
_RUNNER = "pushkit.queue.runner:Runner"
_RESULTS = "pushkit.outbox.attempts"
_TRANSACTION = "pushkit.delivery.enqueue:_Transaction"
_ATTEMPT = "pushkit.delivery.attempt:Attempt"
_SETTLER = "pushkit.delivery.settle:DeliverySettler"
_OUTBOX = "pushkit.outbox.store"
_RECOVER = "pushkit.outbox.clients:recover"
_SET_CONFIG = "pushkit.delivery.registrar:Registrar.put"
_SUBSCRIPTIONS = "pushkit.subscriptions.store"
_TRANSPORT = "pushkit.net.transport"
_GUARD = "pushkit.net.guard"
_CONNECTION = "pushkit.net.connection:Connection"
_POSTGRES = "pushkit.storage.postgres:PostgresDatabase"
_SERVER = "pushkit.storage.postgres_server:PostgresServer"
_SQLITE = "pushkit.storage.sqlite"
_ACCEPTING = "receiver.accepting"
_CALLING = "receiver.callbacks.dispatcher:Dispatcher._call_back"
_CALLING_ALL = "receiver.callbacks.dispatcher:Dispatcher._call_all"
_INBOX = "receiver.inbox.store"
_MAILBOX = "receiver.inbox.mailboxes"
_MAILBOX_CLIENT = "receiver.mailbox.client:Mailbox"
_REGISTRATIONS = "receiver.registrations"

_NO_CHANGE = ("no transition", "no change of a queue's lease")
_LOST_LEASE = ("not drained", "has its lease", "came again", "two at once", "overtook", *_NO_CHANGE)
_AT_ONCE = (
    *("two at once", "came again", "overtook", "has its lease", "two attempts at once"),
    *_NO_CHANGE,
)
_UNFAIR = ("an innocent owner waited",)
_REPEATED = ("called back twice", "called back while called back already")
_HANDLED_AGAIN = (
    *("handled again", "two clients inside of one task", "a client lost its lease"),
    "under a lease that",
)
_UNLOCKED = calls(_SET_CONFIG, "lock_all", "{each.id: each for each in found}")

_CUTS: dict[str, tuple[str, str | tuple[str, ...], *tuple[Edit, ...]]] = {
    # --- claims and leases ----------------------------------------------------------------------
    "fencing": (
        "A result is dropped unless its queue is still under the epoch of its lease.",
        _LOST_LEASE,
        asks_not(f"{_SETTLER}.script", "epoch"),
    ),
    "snapshot filled": (
        "A snapshot is read again once the subscription is there: nothing is missed in between.",
        "missed by",
        uses("pushkit.delivery.snapshots:register", "again or body", "body"),
    ),
    "redrives": (
        "A result from before a redrive is dropped.",
        _LOST_LEASE,
        ignores(f"{_RESULTS}:_settling", "redrives"),
    ),
    "epoch": (
        "The epoch of a queue grows whenever a lease begins or ends.",
        "no change of a queue's lease",
        passes(f"{_RULES}:leased", "_replace", "epoch", "queue.epoch"),
        passes(f"{_RULES}:released", "_replace", "epoch", "queue.epoch"),
    ),
    "lease": (
        "A claimed queue belongs to its worker until its lease ends.",
        _AT_ONCE,
        answers(f"{_CLAIMS}.take_over", "first", "True"),
        sets(f"{_CLAIMS}.take_over.until", "None"),
        answers(f"{_CLAIMS}.expire", "lease_until", "True"),
    ),
    "lease end": (
        "Any worker may claim a queue once its lease has ended.",
        ("not drained", "the simulation failed: TooLongError"),
        answers(f"{_CLAIMS}.take_over", "first", "name in ended"),
    ),
    "own lost lease": (
        "A worker takes over its own lease that it does not know of.",
        ("not drained", "the simulation failed: TooLongError"),
        answers(
            f"{_CLAIMS}.take_over", "first", "name != worker and (name in ended or first <= now)"
        ),
    ),
    "heartbeat": (
        "A worker renews the leases of the queues in its memory.",
        ("not drained", "leased or due", *_LOST_LEASE),
        skips(f"{_RUNNER}._renew_all", "renew"),
    ),
    "claim once": (
        "Of two simultaneous claims, only one gets the queue.",
        _AT_ONCE,
        sets(f"{_TABLES}:_LOCKED", "''"),
    ),
    "skip locked": (
        "A claim does not wait for locked rows.",
        "a claim waits for a row",
        sets(f"{_TABLES}:_LOCKED", "' FOR UPDATE OF q'"),
    ),
    # --- shares ---------------------------------------------------------------------------------
    "fair share": (
        "An owner leaves a quarter of the permits to other owners.",
        (*_UNFAIR, "of 16 slots"),
        returns(f"{_SCHEDULER}:owner_may_take", "free > 0"),
    ),
    "last permits": (
        "Owners with many permits together leave some to owners without any.",
        _UNFAIR,
        sets(f"{_SCHEDULER}:Scheduler.__init__._reserved", "0"),
    ),
    "turns of owners": (
        "Among owners with equally many permits, the one that used the least recently comes first.",
        _UNFAIR,
        returns(f"{_SCHEDULER}:RecentUse.of", "0.0"),
    ),
    "turns of queues": (
        "A queue gives its permit up when an owner waits that holds fewer.",
        _UNFAIR,
        returns(f"{_SCHEDULER}:Scheduler.comes_before", "False"),
    ),
    "many destinations": (
        "Many destinations of one owner do not delay other owners.",
        _UNFAIR,
        answers(f"{_CLAIMS}._first_queues", "is_all", "True"),
    ),
    "all that was gathered": (
        "What stands for gathered chunks has the parts of all.",
        "cancelled without an instruction",
        uses(
            "pushkit.delivery.gathering:joined_chunks",
            "_member(artifact, 'parts', list) + _member(chunk, 'parts', list)",
            "_member(chunk, 'parts', list)",
        ),
    ),
    "end of gathering": (
        "What is gathered waits no longer once something else follows.",
        _UNFAIR,
        calls("pushkit.delivery.gathering:make_way", "hurry", "False"),
    ),
    "reserved quota": (
        "The end of a task is stored even if its quota is used up.",
        "refused without a reason",
        answers(f"{_TRANSACTION}._require_capacity", "ended", "False"),
    ),
    # --- order ----------------------------------------------------------------------------------
    "oldest first": (
        "The oldest deliveries of a queue are claimed first.",
        ("overtook", "came after seq"),
        sql(f"{_TABLES}:_first_pending", r"ORDER BY \{(\d+)\}", r"ORDER BY {\1} DESC"),
    ),
    "order": (
        "A delivery is handed over only if none before it is left in the table.",
        ("overtook", "came after seq", "two at once"),
        asks_not(f"{_RULES}:appended.may_hand", "due_at"),
    ),
    "left in the table": (
        "A queue stays due while deliveries of it are left in the table.",
        ("not drained", "overtook", "came after seq", "leased or due"),
        passes(f"{_RULES}:appended", "_replace", "due_at", "queue.due_at"),
    ),
    "failure goes first": (
        "After a failure its queue is released: the same delivery is the next.",
        ("overtook", "came after seq"),
        answers(f"{_HELD}:HeldQueue.answer", "RETRY", "False"),
    ),
    "memory without gaps": (
        "Only the next delivery of a queue joins those in memory.",
        ("overtook", "came after seq"),
        answers(f"{_HELD}:HeldQueue.append", "tail", "True"),
    ),
    "settled first": (
        "What was not acknowledged is settled before the next delivery of its queue begins.",
        ("overtook", "came after seq"),
        answers(f"{_HELD}:HeldQueue.answer", "ACKNOWLEDGED", "False"),
    ),
    "look again": (
        "A worker learns soon that a subscription was paused, removed or changed.",
        "sent after it was paused, disabled or removed",
        sets(f"{_HELD}:KNOWN_FOR", "1e9"),
    ),
    "waits": (
        "What is brought back under a lease is not in flight before its worker has it.",
        _NO_CHANGE,
        calls("pushkit.outbox.changes:redrive", "int", "0"),
    ),
    "held queue": (
        "Settling locks the row of the queue, so that nothing on it is overwritten.",
        ("not drained", "leased or due", *_NO_CHANGE),
        sql(f"{_SUBSCRIPTIONS}:lock_current", "FOR UPDATE.*", ""),
    ),
    "lock order": (
        "Several subscriptions are always locked in the same order.",
        "two transactions waited for each other",
        sql(
            f"{_SUBSCRIPTIONS}:_recipients",
            r"ORDER BY q\.id",
            "ORDER BY q.id {__import__('random').choice(('', 'DESC'))}",
        ),
    ),
    "pause": (
        "Nothing of a paused subscription is sent.",
        "sent after it was paused",
        asks_not(f"{_RULES}:Queue.may_probe", "paused"),
        asks_not(f"{_RULES}:schedule", "paused"),
    ),
    # --- attempts -------------------------------------------------------------------------------
    "requests count": (
        "Only a request uses up the schedule.",
        "more attempts than requests",
        calls(f"{_RESULTS}:store_results", "int", "1"),
    ),
    "local fault": (
        "A local fault is retried without limit.",
        "dead without a reason",
        uses(
            f"{_ATTEMPT}.make",
            "Outcome.LOCAL_FAULT",
            "Outcome.DEAD if delivery.faults > 2 else Outcome.LOCAL_FAULT",
        ),
    ),
    "crash is no attempt": (
        "The first death of a worker does not use up the schedule.",
        ("more attempts than requests", "dead without a reason"),
        uses(f"{_CLAIMS}.expire", "each.abandoned", "1"),
    ),
    "alone after deaths": (
        "From the second death of a worker in a row on, the first of a queue goes alone.",
        "though two workers died",
        sets(f"{_CLAIMS}._lease.is_alone", "queue.group in tried"),
    ),
    "back-off": (
        "After a failure the next attempt waits as the schedule says.",
        "the same delivery came",
        passes(f"{_ATTEMPT}._failed", "AttemptResult", "retry_at", "wait_until or now"),
    ),
    "Retry-After": (
        "`Retry-After` postpones all deliveries of its owner to that destination.",
        ("the same delivery came", "another delivery came"),
        sets(f"{_ATTEMPT}._failed.wait_until", "None"),
    ),
    "time-out": (
        "An attempt ends in time, whatever the webhook does.",
        ("slots of its worker are lost", "not drained", "took"),
        passes(
            f"{_TRANSPORT}:Transport.post",
            "HttpRequest",
            2,
            "asyncio.get_running_loop().time() + timeout.total_seconds() + 1e6",
        ),
    ),
    "no redirect": (
        "A redirect is not followed.",
        "followed a redirect",
        adds(
            _TRANSPORT,
            "_post = Transport.post\n"
            "async def _follow(self, to, headers, body, **options):\n"
            "    answer = await _post(self, to, headers, body, **options)\n"
            "    moved = answer.headers.one('Location')\n"
            "    if moved is None:\n"
            "        return answer\n"
            "    return await self.post(self.policy.check(moved), headers, body, **options)\n"
            "Transport.post = _follow\n",
        ),
    ),
    "guard": (
        "Only public addresses are dialled.",
        "which is not public",
        answers(f"{_GUARD}:Guard.check", "is_refusal", "False"),
    ),
    "name at dial": (
        "A name is looked up for each connection.",
        "without looking its name up",
        calls(
            f"{_GUARD}:NameLookup.addresses",
            "resolve",
            "_KNOWN.get(host) or _KNOWN.setdefault(host, await self._resolver.resolve(host))",
        ),
        adds(_GUARD, "_KNOWN: dict[str, Sequence[str]] = {}"),
    ),
    "unasked answer": (
        "A connection on which an unrequested answer came is not used again.",
        "used a connection with an unrequested answer",
        skips(f"{_CONNECTION}.buffer_updated", "close", when="_is_written"),
    ),
    "second answer": (
        "A connection that sent two answers to one request is not used again.",
        "used a connection with an unrequested answer",
        answers(f"{_CONNECTION}.on_message_begin", "_waiter", "False"),
    ),
    # --- destinations ---------------------------------------------------------------------------
    "wait of a destination": (
        "`Retry-After` holds what its owner sends to that destination, not only the one delivery.",
        "another delivery came",
        answers(f"{_SETTLER}._for_destination", "wait_until", "False"),
    ),
    "breaker": (
        "A destination that failed five times in a row gets nothing for a while.",
        "came while its breaker was open",
        returns("pushkit.delivery.answers:wait_after", "None"),
    ),
    "probation": (
        "After that, it gets one attempt at a time until it works.",
        "came beside another on probation",
        passes("pushkit.queue.worker:QueueWorker.__init__", "Claims", "probation_from", "10**9"),
    ),
    "probation without a lease": (
        "An attempt on probation counts until it ends, though its subscription was removed.",
        "came beside another on probation",
        calls(f"{_CLAIMS}.claim", "intersection", "set()"),
    ),
    # --- subscriptions and operators ------------------------------------------------------------
    "410": (
        "A webhook that answered 410 gets nothing more.",
        ("sent for a removed subscription", "sent after it was paused, disabled or removed"),
        skips(f"{_SETTLER}._for_subscription", "cancel_subscription"),
    ),
    "removed": (
        "Removing a subscription cancels its unfinished deliveries.",
        ("not drained", "dead without a reason", "sent after it was paused, disabled or removed"),
        skips("pushkit.delivery.registrar:_remove", "cancel_subscription"),
    ),
    "superseded statuses": (
        "Only statuses that say nothing else are replaced by newer ones.",
        "cancelled without an instruction",
        ignores(f"{_OUTBOX}:supersede", "status"),
    ),
    # --- what is stored -------------------------------------------------------------------------
    "idempotency": (
        "The same key stores nothing twice.",
        ("a storage error without a fault", "stored 2 times", "the same idempotency key"),
        sets(f"{_TRANSACTION}.add.earlier", "[]"),
    ),
    "seq of a config": (
        "A config gives no seq twice, also if it is removed while another client sets it.",
        "a config gave one seq to several deliveries",
        _UNLOCKED,
        answers(_SET_CONFIG, "revision", "before is None"),
    ),
    "destination of a config": (
        "Unfinished deliveries follow their config, also if two clients change it at once.",
        "not moved to",
        _UNLOCKED,
    ),
    "uncertain commit": (
        "A transaction that may have been committed is not run again.",
        "times for",
        sets(f"{_POSTGRES}._run_together.is_final", "False"),
    ),
    "no secret in errors": (
        "No error contains the password of the database.",
        "a secret is in",
        calls(f"{_SERVER}._unreachable", "host_of", "self._dsn"),
    ),
    "transaction of a caller": (
        "An update that is notified on a connection is stored with its transaction, or not at all.",
        ("reported as not stored", "sent, but not in the outbox"),
        answers("pushkit.delivery.enqueue:Enqueuer.store", "connection", "True"),
    ),
    "savepoint": (
        "A script that fails in a group stores nothing.",
        (
            *("a storage error without a fault", "reported as not stored", "stored 2 times"),
            *("more attempts than requests", "failed unexpectedly", "not drained", *_NO_CHANGE),
        ),
        answers(f"{_SQLITE}:_run_beside_others", "error", "False"),
    ),
    "failed commit": (
        "All callers that wait for a failed commit get its error.",
        ("sent, but not in the outbox", "acknowledged, but"),
        sets(f"{_SQLITE}:_Writer._fail.is_final", "batch.error, batch.is_final"),
    ),
    # --- workers that end -----------------------------------------------------------------------
    "late once": (
        "A late attempt is recorded once, however often recording it is tried.",
        "an attempt is in the log twice",
        calls("pushkit.outbox.attempts:add_late", "any", "False"),
    ),
    "drain": (
        "A stopping sender gives its attempts time to end.",
        "came again after it was accepted",
        calls(
            "pushkit.delivery.sender:PushSender._finish",
            "_worker.finish",
            "await self._worker.runner.abandon()",
        ),
    ),
    "persistent settling": (
        "An answered delivery is settled while its lease lasts, if the database is unavailable.",
        "came again after it was accepted",
        answers(f"{_RUNNER}._settle_again", "StorageError", "True"),
    ),
    "callback drain": (
        "A stopping receiver gives its callbacks time to end.",
        _REPEATED,
        passes("receiver.runtime:Runtime._finish", "dispatcher.finish", "within", "timedelta(0)"),
    ),
    "migration check": (
        "After an upgrade that may not roll, old programs do not write.",
        "writes beside an upgrade that may not roll",
        answers(f"{_SQLITE}:SqliteDatabase._check_schema", "found", "False"),
    ),
    # --- receiver -------------------------------------------------------------------------------
    "called back once": (
        "A retry of an accepted notification runs no callback again: by the inbox, and the record"
        " of each callback.",
        _REPEATED,
        returns(f"{_INBOX}:accepted_before", "{}"),
        sql(
            f"{_INBOX}:_STORE",
            "DO NOTHING",
            "DO UPDATE SET state = 'pending', place = excluded.place",
        ),
        answers("receiver.service_state:ServiceState.accepted_before", "body_sha256", "True"),
        answers(_CALLING, "had_by", "True"),
    ),
    "one transaction": (
        "The id of a deleted notification is remembered in the transaction that deletes it.",
        ("was answered 202", *_REPEATED),
        skips("receiver.inbox.retention:delete_finished", "insert_rows"),
    ),
    "token": (
        "A signed notification without a token of the receiver is refused.",
        "called back, but never sent",
        answers("receiver.tokens:check_secrets", "static_token", "False"),
    ),
    "timestamp": (
        "A notification signed too long ago, or in the future, is refused.",
        "called back, but never sent",
        skips("receiver.signatures:_check_times", "check_times"),
    ),
    "audience": (
        "A notification signed for another webhook is refused.",
        "called back, but never sent",
        skips("receiver.signatures:check_claims", "check_audience"),
    ),
    "revoked keys": (
        "A revoked key is not published.",
        "a revoked key is published",
        answers("pushkit.keys.ring:KeyRing._state", "revoked_at", "False"),
    ),
    "id conflict": (
        "A known id with another body is refused.",
        "was answered 200",
        answers(f"{_ACCEPTING}:_is_known", "_hash_of", "False"),
    ),
    "id conflict of a recent id": (
        "An id that this process accepted lately is refused with another body, too.",
        "was answered 200",
        asks_not("receiver.service_state:ServiceState.accepted_before", "body_sha256"),
    ),
    "id conflict at once": (
        "Of two bodies that come under one id at the same moment, one is refused.",
        ("was answered 200", "accepted two bodies of one id"),
        answers(f"{_ACCEPTING}:Acceptance._decide_on_copies", "_hash_of", "False"),
    ),
    "id conflict in the inbox": (
        "An id of a deleted notification, which the inbox remembers with another body, is refused.",
        "was answered 202",
        sql(f"{_INBOX}:accepted_before", " UNION ALL.*", ""),
    ),
    "replaced token": (
        "A token that was replaced ends with its overlap.",
        "was answered 202",
        sql(f"{_REGISTRATIONS}:replace_token", r"ELSE \$4", "ELSE $4 + 1000000000000"),
    ),
    "task of a new token": (
        "A token that replaces another is for the same task.",
        "was answered 202",
        passes(f"{_REGISTRATIONS}:replace_token", "_replace", "task_id", "None"),
    ),
    "task of both tokens": (
        "The first notification binds a token and those that replace it to its task.",
        "was answered 202",
        sql(f"{_REGISTRATIONS}:bind_secret", "OR expectation", "OR 1 = 0 AND expectation"),
    ),
    "inbox bound": (
        "The unfinished notifications of one sender in an inbox are limited.",
        "notifications of one sender",
        answers("receiver.inbox.capacity:Capacity.take", "sender", "False"),
    ),
    "order of callbacks": (
        "The notifications of a task are called back one at a time, the oldest first.",
        (" before ", *_REPEATED),
        returns("receiver.inbox.store:queue_id_of", "sender + chr(13) + delivery_id"),
    ),
    "settled before the next call": (
        "A notification is settled before the next one of its task is called back.",
        " before ",
        passes(
            "receiver.callbacks.dispatcher:Dispatcher._new_runner", "Runner", "most_unsettled", "8"
        ),
    ),
    "callback done": (
        "A callback that is done with a notification is not called with it again.",
        _REPEATED,
        answers(_CALLING, "had_by", "True"),
    ),
    "callback lease": (
        "A long callback keeps its lease.",
        (*_REPEATED, "has its lease"),
        calls(
            f"{_RUNNER}._renew_all",
            "renew",
            "None if self._name == 'callbacks' else await self.renew()",
        ),
    ),
    "next callback": (
        "A receiver frozen for longer than its lease calls no further callback.",
        _REPEATED,
        answers(_CALLING_ALL, "is_ours", "False"),
    ),
    "callback time-out": (
        "A callback that hangs is cancelled.",
        ("not called back", "called back while called back already"),
        answers("receiver.callbacks.calls:CallbackCaller.call", "limit", "False"),
    ),
    # --- what is sent again for a client that lost it -------------------------------------------
    "recover": (
        "What an agent says that it sends again, it sends again.",
        "recovered, but not",
        skips(_RECOVER, "redrive"),
    ),
    "recover in flight": (
        "What is asked for before it is settled is sent once more.",
        "recovered, but not",
        skips(_RECOVER, "send_once_more"),
    ),
    "look after a dropped result": (
        "The holder of a queue looks for what has to be sent once more.",
        ("recovered, but not", "not drained"),
        answers(f"{_SETTLER}._store", "are_ours", "False"),
    ),
    "recovered in a day": (
        "An owner has only so many sent again in a day.",
        "sent again more than allowed",
        sets(f"{_RECOVER}.limit", "_MOST_AT_ONCE"),
    ),
    "next page": (
        "A client asks on until all that it wants was sent again.",
        "recovered, but not",
        answers("receiver.recovery:Recovery.ask", "rest", "True"),
    ),
    "gaps": (
        "An operator asks for all that came after the last `seq` that the inbox knows.",
        "recovered, but not",
        sql("receiver.inbox.inspection:gaps", r"last_seq \+ 1", "last_seq + 2"),
    ),
    # --- mailboxes ------------------------------------------------------------------------------
    "mailbox order": (
        "The next notification of a task is handed out once the one before it is settled.",
        (*_HANDLED_AGAIN, "order of a task"),
        calls(
            "receiver.mailbox.service:Mailboxes._keep", "queue_id_of", "notification.delivery_id"
        ),
    ),
    "mailbox fencing": (
        "A receipt is of no use once the lease of its queue has ended.",
        (*_HANDLED_AGAIN, "acked, but not handled"),
        asks_not(f"{_MAILBOX}:_leased", "epoch"),
    ),
    "mailbox lease": (
        "A notification that was handed out is handed to nobody else until its lease ends.",
        _HANDLED_AGAIN,
        passes(f"{_MAILBOX}:MailboxQueues.claim", "leased_by", "until", "until"),
        passes(f"{_MAILBOX}:MailboxQueues.claim", "expire", 2, "until"),
    ),
    "mailbox lease end": (
        "A notification whose lease ended is handed out again.",
        "left in its mailbox",
        skips(f"{_MAILBOX}:MailboxQueues.claim", "expire"),
    ),
    "mailbox renewal": (
        "While a client handles a notification, its lease is renewed.",
        _HANDLED_AGAIN,
        sets("receiver.mailbox.client:_PART_OF_LEASE", "0.01"),
    ),
    "mailbox late fetch": (
        "A client that was suspended for longer than its lease renews it before it begins.",
        "two clients inside of one task",
        returns(f"{_MAILBOX_CLIENT}._holds", "True"),
    ),
    "mailbox nack": (
        "A notification whose handling failed is handed out again.",
        "acked, but not handled",
        uses(f"{_MAILBOX_CLIENT}._close", "'ack' if self._is_done else 'nack'", "'ack'"),
    ),
    "mailbox ack": (
        "A notification is acked only after it was handled.",
        ("acked, but not handled", "order of a task", *_HANDLED_AGAIN),
        calls(f"{_MAILBOX_CLIENT}.__aiter__", "_fetch", "await _acked(self)"),
        adds(
            "receiver.mailbox.client",
            "async def _acked(mailbox):\n    held = await mailbox._fetch()\n"
            "    await mailbox._ask('POST', '/ack', {'receipt': held.receipt})\n    return held",
        ),
    ),
    "mailbox kept in the inbox": (
        "The inbox deletes no notification that a mailbox still has.",
        ("a client lost its lease", "handed out, but not as the inbox has it"),
        sets("receiver.inbox.retention:_IN_NO_MAILBOX", "'1 = 1'"),
    ),
    "mailbox deposit": (
        "A notification is called back, in a mailbox, once it is kept there.",
        "not kept in its mailbox",
        calls("receiver.mailbox.service:Mailboxes._keep", "write_together", "True"),
    ),
}

CUTS = tuple(
    Cut(name, promise, (seen,) if isinstance(seen, str) else seen, tuple(edits))
    for name, (promise, seen, *edits) in _CUTS.items()
)

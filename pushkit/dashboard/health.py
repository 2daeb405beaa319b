"""The sender's health: a pure rule from figures and keys to findings, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pushkit.delivery.error_codes import ERROR_CODES
from pushkit.errors import NoSigningKeyError
from pushkit.keys.ring import KeyRing
from pushkit.outbox.browsing import OutboxFigures
from pushkit.webui.documents import Finding, Severity

_OVERDUE = timedelta(minutes=1)
_OLD = timedelta(hours=1)


def findings(figures: OutboxFigures, ring: KeyRing | None) -> Iterator[Finding]:
    """Yield what an operator should know."""
    yield from _of_deliveries(figures)
    if ring is not None:
        try:
            ring.active_key(figures.now)
        except NoSigningKeyError as exc:
            says = f"Nothing can be signed: {exc}."
            yield Finding(Severity.FAILURE, says, mend("no_signing_key"), "/keys")


def _of_deliveries(figures: OutboxFigures) -> Iterator[Finding]:
    overdue = figures.due_since is not None and figures.now - figures.due_since > _OVERDUE
    if overdue and not figures.local_faults:
        yield Finding(
            Severity.FAILURE,
            "Deliveries are due, and no worker claims them.",
            "Check that a worker runs (pushkit worker, or the agent's own). If one does, it is"
            " short of slots or of CPU.",
            "/deliveries?state=pending",
        )
    for code, number in figures.local_faults.items():
        waits = "delivery waits" if number == 1 else "deliveries wait"
        yield Finding(
            Severity.FAILURE,
            f"{number} {waits} because of an error on this side: {meaning(code)}.",
            mend(code),
            f"/deliveries?state=pending&error={code}",
        )
    if number := figures.failing.number:
        fail = "One destination fails" if number == 1 else f"{figures.failing} destinations fail"
        yield Finding(
            Severity.WARNING,
            f"{fail} or asked to wait.",
            "Deliveries to them are retried automatically; deliveries to others continue.",
            "/destinations",
        )
    if number := figures.died.number:
        yield Finding(
            Severity.WARNING,
            f"{figures.died} dead {'letter' if number == 1 else 'letters'} within the last hour.",
            "Look at their errors; redrive them once their webhook works again.",
            "/deliveries?state=dead",
        )
    elif figures.dead.number:
        yield Finding(
            Severity.NOTE,
            "There are dead letters, none of the newest within the last hour.",
            "Redrive them, or leave them: they are deleted when their retention ends.",
            "/deliveries?state=dead",
        )
    oldest = figures.oldest_pending_at
    if oldest is not None and figures.now - oldest > _OLD:
        yield Finding(
            Severity.NOTE,
            "The oldest delivery at the head of a queue has waited for more than an hour.",
            "It is attempted again by the retry schedule.",
            "/deliveries?state=pending",
        )


def meaning(code: str) -> str:
    """Return what an error code means, in a sentence without its full stop."""
    if code in ERROR_CODES and code != "status_500":
        return ERROR_CODES[code]
    if code.startswith("status_"):
        return f"the webhook answered {code.removeprefix('status_')}"
    return "an error on this side"


def mend(code: str) -> str:
    """Return what an operator can do about an error code."""
    if code.startswith("status_5"):
        code = "status_500"
    return _MENDS.get(
        code, "Look at the attempts below and at the webhook's log; redrive once it works again."
    )


_NOT_ACCEPTED = (
    "The webhook did not accept the credentials, token or signature: check that it knows the"
    " current keys, issuer and URL, then redrive."
)
_NOT_UNSEALED = "Give the workers the key that the secret was sealed with (docs/secrets.md)."
_MENDS = {
    "status_500": "The webhook's own log says why. Pending deliveries are retried by the schedule;"
    " dead letters can be redriven once the webhook works.",
    "status_401": _NOT_ACCEPTED,
    "status_403": _NOT_ACCEPTED,
    "status_404": "Nothing is at that path: the client has to register its webhook's current URL.",
    "redirect": "Redirects are never followed: the client has to register the final URL.",
    "rejected": "The webhook refused the body: check that it speaks the version of A2A that it was"
    " registered with. Its own log says more.",
    "conflict": "The webhook knows this id with another body: its database is another receiver's,"
    " or an older copy of its own.",
    "gone": "The webhook wants no more notifications. To send to it again, enable its subscription"
    " (pushkit subscriptions enable --resend).",
    "too_large": "Raise the body limit of the webhook or its proxy, or send artifacts by URL.",
    "unsupported_media_type": "The webhook has to accept application/a2a+json, and"
    " application/json for versions before A2A 1.0.",
    "unprocessable": "The webhook read the body but did not accept it: check that it speaks the"
    " version of A2A that it was registered with. Its own log says more.",
    "timeout": "The webhook took longer than an attempt may (15 s, unless the sender's timeout says"
    " otherwise): it should answer first, and work afterwards.",
    "dns_failure": "Check that the name is still registered, and that this machine can look it up.",
    "connection_refused": "The webhook's server is down, or a firewall rejects the connection.",
    "tls_failure": "The certificate, its name or the TLS version is wrong: openssl s_client"
    " -connect host:port shows which. If the workers' log names an alert about a certificate or CA,"
    " the server refuses the client certificate.",
    "transport": "The server or a proxy closed the connection before it answered, or did not answer"
    " in HTTP. A server that refuses a client certificate closes it, too: the workers' log says if"
    " that has expired.",
    "address_refused": "The name resolves to a private or forbidden address. allow_networks permits"
    " an intranet (docs/destinations.md).",
    "destination_refused": "The URL breaks a rule of the destination policy: docs/destinations.md"
    " says which rules can be relaxed.",
    "ownership_unproven": "The webhook has to answer the ownership challenge:"
    " see docs/destinations.md.",
    "too_old": "It waited longer than the retry policy allows. Redriving it resets its age.",
    "subscription_missing": "Nothing to do if it was removed on purpose. Its client can"
    " register again.",
    "superseded": "Nothing to do: a newer status replaced it, as SenderOptions(coalesce=) allows.",
    "invalid_configuration": "The message, or the workers' log, names the setting.",
    "sealed_secret": _NOT_UNSEALED,
    "secret_key_missing": _NOT_UNSEALED,
    "no_signing_key": "Run pushkit keys list, then pushkit keys rotate.",
    "key_file": "Check the key file's mode and passphrase: the message, or the log, says more.",
    "signing_failed": "The KMS, or the function that chooses a signature, failed: see the workers'"
    " log.",
    "egress_proxy": "Check that the proxy is up, and its user and password: the workers' log has"
    " its answer.",
    "resources_exhausted": "Raise the limit of open files (ulimit -n, LimitNOFILE=), or find the"
    " code that does not close its files.",
    "oauth": "Check that the authorization server can be reached, and knows this client.",
    "storage": "The database failed, or refused the operation: the message, or the workers' log,"
    " has its error.",
    "unexpected_error": "A defect of pushkit: the workers' log has its traceback.",
    "worker_died": "A worker ended during an attempt. Its deliveries are attempted again.",
    "lease_expired": "An attempt was not settled in time: a worker hangs, or is short of CPU.",
}

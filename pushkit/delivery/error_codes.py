"""The codes of a delivery's `last_error`: what each means, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

from pushkit.errors import CodeTable, PushkitError, page_of

_OF_THIS_SIDE: Final = {
    "egress_proxy": "the egress proxy was not reached, wants credentials or fewer requests, or is"
    " not a proxy",
    "resources_exhausted": "this process or machine has no socket or memory left to dial with",
    "oauth": "the authorization server gave no token",
    "no_signing_key": "no key is active for the algorithm",
    "key_file": "the key file cannot be used",
    "signing_failed": "the remote key did not sign, or the `signing` function failed",
    "sealed_secret": "a sealed token, credential or body cannot be opened",
    "secret_key_missing": "a secret is sealed with a key that this sender does not have",
    "invalid_configuration": "a setting is wrong",
    "storage": "the database refused",
    "unexpected_error": "an unexpected error: the log has its traceback",
    "lease_expired": "its worker did not settle it in time",
    "worker_died": "its worker died",
}
ERROR_CODES: Final = {
    # Answers of the webhook.
    "status_500": "the webhook answered 500; likewise any other status that has no code of its own",
    "redirect": "the webhook answered with a redirect, which is never followed",
    "rejected": "the webhook answered 400",
    "conflict": "the webhook answered 409",
    "gone": "the webhook answered 410: its subscription is disabled",
    "too_large": "the webhook answered 413",
    "unsupported_media_type": "the webhook answered 415",
    "unprocessable": "the webhook answered 422",
    # Delivered, and something was wrong with the answer all the same.
    "folded_header": "a header line of the webhook's answer is folded",
    "bare_line_feed": "lines of the webhook's answer end without a carriage return",
    "malformed_header": "a header line of the webhook's answer is malformed",
    # No answer.
    "timeout": "no answer in time",
    "dns_failure": "the webhook's name could not be looked up",
    "connection_refused": "no server listens at the webhook's address",
    "tls_failure": "no TLS connection: certificate, name or version",
    "transport": "the connection broke, or the answer was not HTTP",
    # Not posted.
    "address_refused": "the webhook's name resolves to an address that is not allowed",
    "destination_refused": "the webhook's URL breaks a rule of the destination policy",
    "ownership_unproven": "the webhook did not prove that it wants notifications",
    "too_old": "given up: older than the retry policy allows",
    "subscription_missing": "its subscription was removed before it could be attempted",
    "superseded": "cancelled: a newer update replaces it, or has its content, too",
    # Faults of this side; the code of any other pushkit error may occur too.
    **_OF_THIS_SIDE,
}

_UNREACHABLE: Final = {"dns_failure", "address_refused"}
_STATUS = re.compile(r"status_[1-5][0-9]{2}")


def is_error_code(code: str) -> bool:
    """Return whether a delivery may have this code."""
    return code in ERROR_CODES or _STATUS.fullmatch(code) is not None or code in PushkitError.codes


def told_to_client(code: str) -> str:
    """Return an error code as the client whose webhook it is may know it.

    Faults of this side are one code. So are a name that is not known and one that leads to a
    forbidden address: the difference would tell which internal names there are.
    """
    if code in _UNREACHABLE:
        return "unreachable"
    is_theirs = code in ERROR_CODES and code not in _OF_THIS_SIDE
    return code if is_theirs or _STATUS.fullmatch(code) else "sender_fault"


def meaning(code: str) -> str:
    """Return what an error code means, in a sentence without its full stop."""
    if code in ERROR_CODES and code != "status_500":
        return ERROR_CODES[code]
    if code.startswith("status_"):
        return f"the webhook answered {code.removeprefix('status_')}"
    return "an error on this side"


def remedy(code: str) -> str:
    """Return what an operator can do about an error code."""
    if code.startswith("status_5"):
        code = "status_500"
    return _REMEDIES.get(
        code, "Look at the attempts below and at the webhook's log; redrive once it works again."
    )


def explained_codes() -> list[str]:
    """Return the codes of deliveries that have a row of their own in the reference."""
    return [*ERROR_CODES, *(code for code in _REMEDIES if code not in ERROR_CODES)]


def page_of_code(code: str) -> str:
    """Return where the reference explains the error code of a delivery."""
    if code in explained_codes():
        return page_of(CodeTable.DELIVERY, code)
    if _STATUS.fullmatch(code):
        return page_of(CodeTable.DELIVERY, "status_500")
    return page_of(CodeTable.ERROR, code)


_NOT_ACCEPTED = (
    "The webhook did not accept the credentials, token or signature: check that it knows the"
    " current keys, issuer and URL, then redrive."
)
_COUNTED = (
    "Its status counted. Other clients refuse such an answer, or give it another length: the"
    " webhook's server, or a proxy before it, has to write its head as RFC 9112 demands."
)
_NOT_UNSEALED = "Give the workers the key that the secret was sealed with (docs/secrets.md)."
_REMEDIES = {
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
    "folded_header": _COUNTED,
    "bare_line_feed": _COUNTED,
    "malformed_header": _COUNTED,
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
    "superseded": "Nothing to do: a newer update stands for it, as SenderOptions(coalesce=) or the"
    " filter's min_interval allows.",
    "invalid_configuration": "The message, or the workers' log, names the setting.",
    "sealed_secret": _NOT_UNSEALED,
    "secret_key_missing": _NOT_UNSEALED,
    "no_signing_key": "Run pushkit keys list, then pushkit keys rotate --alg ALG for the algorithm"
    " that has no active key.",
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
    "worker_died": "A worker ended with the delivery's queue. Its deliveries are attempted again;"
    " from the second such end in a row on, each counts as an attempt of the first one.",
    "lease_expired": "An attempt was not settled in time: a worker hangs, or is short of CPU.",
}

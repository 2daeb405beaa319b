"""A delivery in a worker's memory, and its route.

A route is what all requests of a subscription have in common, computed once per revision.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pushkit.bounded_json import JsonValue
from pushkit.keys.jwk import Algorithm
from pushkit.net.authorization import Credentials, ReadyCredentials, credential_header
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.signing.notification_jwt import static_claims
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Owner, Profile, StoredSubscription, Subscription
from pushkit.subscriptions.store import by_ids, open_subscription
from pushkit.version import USER_AGENT
from pushkit.webhook import token_headers


@record(frozen=True, slots=True, kw_only=True)
class Route:
    """How the notifications of one subscription get to its webhook."""

    # With its secrets opened, as it was when the route was made. Members that do not change the
    # revision (`paused`, `last_seq`, …) may be outdated.
    subscription: Subscription = field(repr=False)
    owner: Owner
    destination: Destination  # the subscription's URL, checked
    access: ReadyCredentials  # the operator's credentials for it
    # The claims that are the same in the JWT of every notification.
    claims: Mapping[str, JsonValue] = field(repr=False)
    algorithm: Algorithm | None  # the algorithm to sign with; None for the ring's default
    # The header fields (wire profile §2) that are the same in every request.
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    has_authorization: bool  # whether credentials or an OAuth token use `Authorization`


class Routes:
    """Makes routes, and remembers the most recently used ones, each at its revision.

    It may be used by several threads: transactions use it, too.
    """

    def __init__(
        self,
        *,
        issuer: str,  # `iss` of every notification
        policy: DestinationPolicy,  # which URLs may be posted to
        vault: Vault,
        # The operator's credentials for destinations, if there are any.
        credentials: Credentials | None = None,
        go_token_spelling: bool = False,  # send `A2A-Notification-Token` too
        most: int = 4096,  # how many are remembered
    ) -> None:
        self._issuer = issuer
        self._policy = policy
        self._vault = vault
        self._credentials = credentials
        self._go_token_spelling = go_token_spelling
        self._most = most
        self._lock = threading.Lock()
        self._routes: dict[str, Route] = {}  # the most recently used ones last

    def known(self, subscription_id: str, revision: int) -> Route | None:
        """Return the remembered route of a subscription; None if there is none of this revision."""
        with self._lock:
            route = self._routes.pop(subscription_id, None)
            if route is None or route.subscription.revision != revision:
                return None
            self._routes[subscription_id] = route
            return route

    def of(self, stored: StoredSubscription) -> Route:
        """Return the route of a subscription, remembered or new.

        Raises:
            SealedSecretError: One of its secrets cannot be opened.
            DestinationRefusedError: Its URL may not be posted to.
        """
        subscription = stored.subscription
        route = self.known(subscription.id, subscription.revision)
        if route is not None:
            return route
        route = self._route(open_subscription(self._vault, stored))
        with self._lock:
            while len(self._routes) >= self._most:
                del self._routes[next(iter(self._routes))]
            self._routes[subscription.id] = route
        return route

    def _route(self, subscription: Subscription) -> Route:
        config, key = subscription.config, subscription.key
        destination = self._policy.check(config.url)
        owner = Owner(tenant=key.tenant, name=key.owner)
        clients = credential_header(config.authentication)
        access = ReadyCredentials()
        if self._credentials is not None:
            access = self._credentials.access_for(destination, owner, clients=clients)
        credentials = [each for each in (access.static, clients) if each is not None]
        is_samples = subscription.profile is Profile.A2A_SAMPLES
        return Route(
            subscription=subscription,
            owner=owner,
            destination=destination,
            access=access,
            claims=static_claims(
                issuer=self._issuer,
                audience=None if is_samples else destination.url.audience,
                task_id=key.task_id,
                config_id=key.config_id,
            ),
            algorithm=Algorithm.RS256 if is_samples else None,
            headers=(
                ("User-Agent", USER_AGENT),
                ("Accept-Encoding", "identity"),
                *token_headers(config.token, go_spelling=self._go_token_spelling),
                *credentials,
            ),
            has_authorization=access.tokens is not None or "Authorization" in dict(credentials),
        )


@record(frozen=False, slots=True, eq=False)
class DeliveryJob:
    """A leased delivery, where it goes, and the result of its attempt."""

    delivery: Delivery  # as it was leased
    # Its subscription, or the subscription's route; None if the subscription was removed.
    to: StoredSubscription | Route | None
    seq: int
    redrives: int
    size: int  # of its body, in bytes
    refusals: int = 0  # how often this sender's own policy refused its destination
    result: AttemptResult | None = None  # by the worker's clock


def job_of(
    delivery: Delivery, to: StoredSubscription | Route | None, refusals: int = 0
) -> DeliveryJob:
    """Return the job of a delivery."""
    size = len(delivery.body)
    return DeliveryJob(delivery, to, delivery.seq, delivery.redrives, size, refusals)


def read_subscriptions(jobs: list[DeliveryJob]) -> Script[None]:
    """Read the subscriptions of jobs whose routes are not remembered."""
    ids = [job.delivery.subscription_id for job in jobs]
    found = yield from by_ids(ids)
    for job in jobs:
        job.to = found.get(job.delivery.subscription_id)

"""The options of `pushkit worker` that say how it delivers: waits, deadlines, what is kept.

Without any of them it delivers as `SenderOptions` does by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import click

from pushkit.outbox.retention import Retention
from pushkit.terminal.command import age, parse_age
from pushkit.terminal.options import Given, gathered
from pushkit.work import stop_after_attempt, stop_after_delay
from pushkit.work.retry import RetryPolicy, wait_schedule

_FOREVER = "forever"
_WAITS = "5s,5m,30m,2h,5h,10h,14h,20h,24h"  # DEFAULT_SCHEDULE, as people read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivering:
    """How a worker delivers."""

    timeout: timedelta
    waits: tuple[timedelta, ...]
    max_age: timedelta
    disable_after: timedelta
    keep_delivered: timedelta | None
    keep_dead: timedelta | None
    keep_answers: bool
    go_token_spelling: bool
    use_aiohttp: bool

    def options(self) -> dict[str, Any]:
        """Return what that is in `SenderOptions`."""
        return {
            "timeout": self.timeout,
            "retry": RetryPolicy(
                wait=wait_schedule([wait.total_seconds() for wait in self.waits]),
                stop=stop_after_attempt(len(self.waits) + 1)
                | stop_after_delay(self.max_age.total_seconds()),
            ),
            "disable_after": self.disable_after,
            "retain": Retention(delivered=self.keep_delivered, dead=self.keep_dead),
            "keep_answers": self.keep_answers,
            "go_token_spelling": self.go_token_spelling,
            "use_aiohttp": self.use_aiohttp,
        }


def _waits(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> tuple[timedelta, ...]:
    return tuple(parse_age(each.strip()) for each in value.split(","))


def _age_option(name: str, default: str, says: str) -> Given:
    return click.option(name, metavar="AGE", default=default, callback=age, help=says)


def _age_or_forever(
    context: click.Context, parameter: click.Parameter, value: str
) -> timedelta | None:
    return None if value == _FOREVER else age(context, parameter, value)


def _keep_option(name: str, default: str, says: str) -> Given:
    return click.option(
        name, metavar=f"AGE|{_FOREVER}", default=default, callback=_age_or_forever, help=says
    )


delivery_options = gathered(
    "delivering",
    Delivering,
    timeout=_age_option("--timeout", "15s", "The deadline of one attempt in total."),
    waits=click.option(
        "--waits",
        metavar="AGE,AGE,…",
        default=_WAITS,
        callback=_waits,
        help="After the 1st, 2nd, … failed attempt; after the last one a delivery is dead.",
    ),
    max_age=_age_option("--max-age", "90h", "Nor is a delivery tried when it is older than this."),
    disable_after=_age_option(
        "--disable-after", "5d", "A subscription with nothing but failures for so long is disabled."
    ),
    keep_delivered=_keep_option(
        "--keep-delivered", "7d", "How long delivered and cancelled deliveries stay."
    ),
    keep_dead=_keep_option("--keep-dead", "30d", "How long dead letters stay."),
    keep_answers=click.option(
        "--keep-answers", is_flag=True, help="Keep the first KiB of each answer, for outbox show."
    ),
    go_token_spelling=click.option(
        "--go-token-spelling", is_flag=True, help="Send the token as A2A-Notification-Token too."
    ),
    use_aiohttp=click.option(
        "--use-aiohttp", is_flag=True, help="Post over aiohttp in place of pushkit's own client."
    ),
)

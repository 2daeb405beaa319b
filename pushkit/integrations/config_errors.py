"""Which errors the clients of push configs may read: those of their own configs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pushkit.delivery.sender import PushSender
from pushkit.errors import InvalidPushConfigError, PushkitError, UnsupportedVersionError
from pushkit.logs import RepeatedLog


@contextmanager
def config_errors(
    sender: PushSender,
    owner: str,
    faults: RepeatedLog,
    error_of: Callable[[PushkitError | None], Exception],
) -> Iterator[None]:
    """Replace errors of a `PushSender`, within, by errors that are sent to clients.

    Args:
        sender: Reports refusals to its operator.
        owner: The client.
        faults: Where errors are logged that are not the client's.
        error_of: Returns the error for a client's own one, or, for None, one without a reason.
    """
    try:
        yield
    except (InvalidPushConfigError, UnsupportedVersionError) as exc:
        sender.report_refusal(exc, owner=owner)
        raise error_of(exc) from exc
    except PushkitError as exc:
        faults.log(exc.code, logging.ERROR, "a push config could not be served", exc_info=exc)
        raise error_of(None) from exc

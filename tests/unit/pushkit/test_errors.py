"""Errors can be pickled, as process pools and task queues do."""

from __future__ import annotations

import pickle

import pytest

from pushkit.errors import (
    AddressRefusedError,
    ConfigError,
    DestinationRefusedError,
    OwnershipError,
    PushkitError,
    UrlDecision,
)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ConfigError("said"), id="message-alone"),
        pytest.param(
            DestinationRefusedError("said", decision=UrlDecision.NOT_HTTPS), id="destination"
        ),
        pytest.param(AddressRefusedError("said", decision=UrlDecision.OWN_ADDRESS), id="address"),
        pytest.param(OwnershipError("said", status=404), id="ownership"),
    ],
)
def test_an_error_comes_through_a_pickle_with_what_it_carries(error: PushkitError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own, from a line above
    assert (type(again), str(again), vars(again)) == (type(error), "said", vars(error))

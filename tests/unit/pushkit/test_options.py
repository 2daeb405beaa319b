"""Options, each declared once: their checks in Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import pytest

from pushkit import (
    AlertOptions,
    BreakerPolicy,
    DestinationRules,
    Filter,
    OAuthClient,
    PushSender,
    Retention,
    RetryPolicy,
    SenderOptions,
    Signing,
)
from pushkit.errors import ConfigError
from pushkit.integrations.enqueue_buffer import EnqueueBuffer
from pushkit.integrations.push_config_api import PushConfigApi
from pushkit.net.transport import ConnectionOptions
from pushkit.options import (
    REQUIRED,
    Age,
    Bounds,
    Count,
    Duration,
    check_options,
    checked,
    options_of,
    sentences_of,
)
from receiver import InboxRetention, Limits, RateLimit, Receiver, TrustedSender
from receiver.callbacks.registry import CallbackRegistry


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brush:
    """A brush.

    Attributes:
        name: What it is called.
        hairs: How many hairs it has; the more,
            the softer.
        dries_for: How long it dries.

    Raises:
        ConfigError: There is no such brush.
    """

    name: str
    hairs: Count = 100
    dries_for: Duration = timedelta(hours=1)
    kept: Age | None = None
    thickness: Annotated[float, Bounds(above=0, most=5)] | None = 1.5
    colour: Colour | str = Colour.RED
    colours: Collection[Colour] = frozenset()
    order: Sequence[Colour] = ()
    tokens: Sequence[str] = field(default=(), repr=False)
    clean: Callable[[], None] | None = None
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_options(self, of="brush: ")


WRONG: dict[str, dict[str, Any]] = {
    "name: found int, expected str": {"name": 5},
    "name: found NoneType, expected str": {"name": None},
    "hairs: found 0, expected at least 1": {"hairs": 0},
    "dries_for: found 0:00:00, expected more than zero": {"dries_for": timedelta(0)},
    "kept: found -1 day, 23:59:59, expected zero to 36500d, or None": {
        "kept": timedelta(seconds=-1)
    },
    "thickness: found 6, expected more than 0, up to 5, or None": {"thickness": 6},
    "thickness: found nan, expected more than 0, up to 5, or None": {"thickness": float("nan")},
    "thickness: found str, expected int or float or None": {"thickness": "1"},
    "colour: found 'green', expected one of red, blue": {"colour": "green"},
    "colours: found 'red', expected a list: ['red']": {"colours": "red"},
    "colours: found 'green', expected one of red, blue": {"colours": ["red", "green"]},
    "names: expected a list, found a str": {"names": "https://me:canary@host"},
    "tokens: expected a list, found a str": {"tokens": "canary"},
    "tokens: found int in the list, expected str": {"tokens": [5]},
    "clean: found int, expected a callable or None": {"clean": 5},
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_value_is_refused_with_what_was_expected(says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Brush(**{"name": "a", **WRONG[says]})
    assert str(refused.value).startswith(f"brush: {says}")
    assert "canary" not in str(refused.value)


def test_words_become_members_and_lists_keep_their_order() -> None:
    brush = Brush(name="a", colour="blue", colours=["red"], order=["blue", "red"])  # type: ignore[list-item]
    assert brush.colour is Colour.BLUE
    assert brush.colours == {Colour.RED}
    assert brush.order == (Colour.BLUE, Colour.RED)
    assert all(isinstance(each, Colour) for each in (*brush.colours, *brush.order))


def test_an_option_has_what_its_field_declares() -> None:
    options = options_of(Brush)
    assert options["name"].default is REQUIRED
    assert options["names"].default == []
    assert options["hairs"].bounds == Bounds(least=1)
    assert [name for name, option in options.items() if option.is_secret] == ["tokens"]


def test_a_sentence_is_that_of_the_docstring() -> None:
    assert sentences_of(Brush) == {
        "name": "What it is called.",
        "hairs": "How many hairs it has; the more, the softer.",
        "dries_for": "How long it dries.",
    }


def test_a_sentence_may_be_that_of_an_attribute_behind_the_arguments() -> None:
    class Painter:
        """Paints.

        Args:
            brush: What with.

        Attributes:
            coats: How many coats
                there are.
        """

    assert sentences_of(Painter) == {"brush": "What with.", "coats": "How many coats there are."}


def test_each_call_of_a_checked_function_is_checked() -> None:
    @checked
    def paint(wall: str, *, coats: Count = 1, colour: Colour = Colour.RED) -> str:
        return f"{wall} {coats} {colour.name}"

    given: dict[str, Any] = {"colour": "blue"}
    assert paint("north", **given) == "north 1 BLUE"
    with pytest.raises(ConfigError, match=r"^coats: found 0, expected at least 1$"):
        paint("north", coats=0)
    with pytest.raises(ConfigError, match=r"^wall: found NoneType, expected str$"):
        paint(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        paint()  # type: ignore[call-arg]


def test_an_iterator_is_read_once_and_kept() -> None:
    @checked
    def paint(walls: Iterable[str]) -> list[str]:
        return [*walls, *walls]

    assert paint(iter(["north"])) == ["north", "north"]


@pytest.mark.parametrize(
    ("declared", "unchecked"),
    [
        (AlertOptions, set()),
        (BreakerPolicy, set()),
        (CallbackRegistry.add, set()),
        (ConnectionOptions, {"resolver"}),
        (DestinationRules, set()),
        (EnqueueBuffer, set()),
        (Filter, set()),
        (InboxRetention, set()),
        (Limits, set()),
        (OAuthClient, set()),
        (PushConfigApi, set()),
        (PushSender, {"keys", "tracing"}),
        (RateLimit, set()),
        (Receiver, {"tracing"}),
        (Retention, set()),
        (RetryPolicy, set()),
        (SenderOptions, set()),
        (Signing, set()),
        (TrustedSender, set()),
    ],
)
def test_every_option_is_checked_but_those_of_protocols_and_extras(
    declared: Callable[..., object], unchecked: set[str]
) -> None:
    options = options_of(declared)
    assert {name for name, option in options.items() if object in option.kinds} == unchecked

"""Records have the same repr, equality and hash as dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import ClassVar

import pytest

from pushkit.record import field, record


@record(frozen=True, slots=True, kw_only=True)
class Base:
    kind: ClassVar[str] = "base"
    name: str


@record(frozen=True, slots=True, kw_only=True)
class Child(Base):
    secret: bytes = field(repr=False)
    seen: int = field(default=0, compare=False)
    about: dict[str, int] = field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    name: str
    secret: bytes = dataclasses.field(repr=False)
    seen: int = dataclasses.field(default=0, compare=False)
    about: dict[str, int] = dataclasses.field(default_factory=dict, hash=False)


@record(frozen=True, slots=True)
class Speaking:
    name: str

    def __repr__(self) -> str:
        return "said otherwise"


@record(frozen=False, slots=True)
class Changing:
    inner: object = None


@record(frozen=False, slots=True, eq=False)
class Itself:
    name: str = ""


def test_a_repr_is_that_of_a_dataclass_and_shows_no_secret() -> None:
    shown = repr(Child(name="a", secret=b"hidden", about={"b": 1}))

    assert shown == repr(Plain(name="a", secret=b"hidden", about={"b": 1})).replace(
        "Plain", "Child"
    )
    assert "hidden" not in shown


def test_a_class_keeps_the_repr_that_it_writes() -> None:
    assert repr(Speaking("a")) == "said otherwise"


def test_a_record_in_itself_has_an_end() -> None:
    circle = Changing()
    circle.inner = circle

    assert repr(circle) == "Changing(inner=...)"


def test_records_are_equal_by_what_is_compared() -> None:
    one = Child(name="a", secret=b"s", seen=1)

    assert one == Child(name="a", secret=b"s", seen=2)
    assert hash(one) == hash(Child(name="a", secret=b"s", seen=2, about={"b": 1}))
    assert one != Child(name="a", secret=b"t", seen=1)
    assert one != Child(name="a", secret=b"s", seen=1, about={"b": 1})


def test_records_of_two_classes_are_never_equal() -> None:
    assert Base(name="a") != Child(name="a", secret=b"")


def test_a_mutable_record_has_no_hash() -> None:
    assert Changing(1) == Changing(1)
    assert not isinstance(Changing(), Hashable)


def test_a_record_without_equality_equals_only_itself() -> None:
    assert Itself() != Itself()
    assert isinstance(Itself(), Hashable)


def test_records_have_slots_and_take_no_other_member() -> None:
    with pytest.raises(AttributeError):
        Base(name="a").other = 1  # type: ignore[attr-defined]
    assert dataclasses.replace(Base(name="a"), name="b") == Base(name="b")

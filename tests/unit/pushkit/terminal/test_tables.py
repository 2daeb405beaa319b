"""Tables of TOML that are made from classes of options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest

from pushkit.errors import ConfigError
from pushkit.options import Bounds, Count, Duration, LastingAge, Wait
from pushkit.terminal.tables import SettingsTable, TomlFile, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Oven:
    """An oven."""

    name: str
    trays: Count = 2
    heat_up: Wait = timedelta(minutes=10)
    bake: Annotated[timedelta, Bounds(above=timedelta(0), most=timedelta(hours=1))] = timedelta(
        minutes=30
    )
    rest: Duration | None = timedelta(seconds=5)
    kept: LastingAge | None = timedelta(days=7)
    recipe: Path | None = None
    power: Annotated[float, Bounds(above=0)] | None = None
    spices: Sequence[str] = ()
    secrets: Sequence[str] = field(default=(), repr=False)
    cook: object = None


@with_options(Oven, without="cook", names={"kept": "kept_days", "bake": "bake_minutes"})
class OvenTable(SettingsTable):
    """An oven, in a file."""

    colour: str = "white"


def read(folder: Path, text: str) -> OvenTable:
    (folder / "oven.toml").write_text(text)
    return TomlFile.read(folder / "oven.toml", variables="OVEN_").to(OvenTable)


def test_what_the_file_leaves_out_has_the_default_of_the_option(tmp_path: Path) -> None:
    assert read(tmp_path, 'name = "a"').made(Oven) == Oven(name="a")


def test_a_value_of_the_file_becomes_that_of_the_option(tmp_path: Path) -> None:
    text = """
name = "a"
trays = 3
heat_up_seconds = 0
bake_minutes = 60
rest_seconds = "none"
kept_days = "forever"
recipe = "bread.txt"
power = 1.5
spices = ["salt", "pepper"]
"""
    assert read(tmp_path, text).made(Oven) == Oven(
        name="a",
        trays=3,
        heat_up=timedelta(0),
        bake=timedelta(hours=1),
        rest=None,
        kept=None,
        recipe=tmp_path / "bread.txt",
        power=1.5,
        spices=("salt", "pepper"),
    )


def test_its_document_is_what_the_file_would_state_and_masks_secrets(tmp_path: Path) -> None:
    document = read(tmp_path, 'name = "a"\nsecrets = ["canary"]\nkept_days = "forever"').document()
    assert document == {
        "name": "a",
        "trays": 2,
        "heat_up_seconds": 600,
        "bake_minutes": 30,
        "rest_seconds": 5,
        "kept_days": "forever",
        "recipe": None,
        "power": None,
        "spices": [],
        "secrets": ["***"],
        "colour": "white",
    }
    assert (
        document.items()
        >= (OvenTable.defaults() | {"secrets": ["***"], "kept_days": "forever"}).items()
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trays = 0", ":2: trays: expected at least 1, found 0"),
        ("trays = true", ":2: trays: expected a whole number, found true or false"),
        ("trays = 2147483648", ":2: trays: expected at most 2147483647, found 2147483648"),
        ("bake_minutes = 61", ":2: bake_minutes: expected at most 60, found 61"),
        ("heat_up_seconds = -1", ":2: heat_up_seconds: expected at least 0, found -1"),
        ("rest_seconds = 0", ":2: rest_seconds: expected a whole number from 1 on, or 'none'"),
        (
            'kept_days = "never"',
            ":2: kept_days: expected a whole number from 1 to 36500, or 'forever'",
        ),
        ("power = 0", ":2: power: expected more than 0.0, found 0"),
        ('secrets = "canary"', ":2: secrets: expected a list, found a string"),
        ("kept = 5", ":2: kept: there is no such setting"),
        ("cook = 5", ":2: cook: there is no such setting"),
        ('spcies = ["salt"]', ":2: spcies: there is no such setting; did you mean 'spices'?"),
    ],
)
def test_a_mistake_has_its_line_and_what_was_expected(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f'name = "a"\n{text}')
    assert str(refused.value).startswith(f"{tmp_path / 'oven.toml'}{says}")
    assert "canary" not in str(refused.value)


def test_a_variable_precedes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_TRAYS", "7")
    monkeypatch.setenv("OVEN_SPICES", '["salt"]')
    monkeypatch.setenv("OVEN_REST_SECONDS", "none")
    oven = read(tmp_path, 'name = "a"\ntrays = 3').made(Oven)
    assert (oven.trays, oven.spices, oven.rest) == (7, ("salt",), None)


@pytest.mark.parametrize(
    ("value", "says"),
    [("many", "OVEN_TRAYS: expected a whole number, found text"), ("0", "OVEN_TRAYS: expected at")],
)
def test_a_mistake_in_a_variable_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    monkeypatch.setenv("OVEN_TRAYS", value)
    with pytest.raises(ConfigError, match=f"^{says}"):
        read(tmp_path, 'name = "a"')

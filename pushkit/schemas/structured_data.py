"""Data parts that declare a schema: the "Input/output schemas" extension, v1.

A data part whose metadata say `mimeType: application/json;schema=<name>` holds data that fits the
schema which the agent's card declares under that name (extension §1, §2, §4).
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

from pushkit.a2a.updates import (
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Part,
    StatusUpdate,
    TaskSnapshot,
    TaskUpdate,
)
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidSchemaError
from pushkit.record import record
from pushkit.schemas.bounded_schema import MAX_STEPS, BoundedSchema
from pushkit.schemas.keywords import MAX_SECONDS, Steps, UndecidedError, require_extra

EXTENSION_URI = (
    "https://raw.githubusercontent.com/facultyai/a2a-extension-object-schemas/refs/heads/main/v1"
)
_MAX_SCHEMAS = 64
# Of computing, to read all schemas of a card.
_MAX_READING_SECONDS = 5.0
_THREADS = 2


class Fit(StrEnum):
    """Whether data fits the schema that it names."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN_SCHEMA = "unknown-schema"
    """The card declares no schema of that name."""
    UNDECIDED = "undecided"
    """The schema is unusable, or checking would cost too much. Not to be taken for valid."""


@record(frozen=True, slots=True, kw_only=True)
class DataVerdict:
    """What became of one data part."""

    part: DataPart  # the part
    location: str  # where it stands in the update, such as `artifacts.0.parts.1`
    schema: str  # the schema that it names
    fit: Fit  # whether it fits
    path: str | None = None  # of what does not fit, the first place: a JSON Pointer into the data
    # The keyword of the schema that does not hold there, or why the schema is unusable.
    rule: str | None = None


class CardSchemas:
    """The schemas that an agent's card declares, by name.

    One that is hostile or malformed spoils nothing but its own data.

    Raises:
        InvalidSchemaError: Too many.
        ConfigError: The extra `schemas` is not installed.
    """

    def __init__(self, schemas: Mapping[str, JsonValue]) -> None:
        if len(schemas) > _MAX_SCHEMAS:
            raise InvalidSchemaError(f"{len(schemas)} schemas, expected at most {_MAX_SCHEMAS}")
        if schemas:
            require_extra()  # now, where a setting is read, and not when data comes
        self._documents = dict(schemas)
        self._read: dict[str, BoundedSchema | InvalidSchemaError] = {}
        self._seconds = _MAX_READING_SECONDS
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def of_card(cls, card: Mapping[str, JsonValue]) -> CardSchemas:
        """Read the schemas of a card, whose signature the caller has verified.

        They stand at the card's root (extension §1), or, since an A2A 1.0 card has no members of
        its own making there, in the extension's `params`. A card that does not declare the
        extension has none.

        Raises:
            InvalidSchemaError: The schemas are no object, too many, or two of one name differ.
        """
        params = _extension_params(card)
        if params is None:
            return cls({})
        merged: dict[str, JsonValue] = {}
        for place in (card.get("schemas"), params.get("schemas")):
            if place is None:
                continue
            if not isinstance(place, dict):
                raise InvalidSchemaError("schemas: expected an object of schemas by name")
            if any(merged.get(name, schema) != schema for name, schema in place.items()):
                raise InvalidSchemaError("schemas: two of the same name differ")
            merged |= place
        return cls(merged)

    @property
    def unusable(self) -> dict[str, str]:
        """Which schemas cannot be used, and why."""
        found = {name: self._schema(name) for name in self._documents}
        return {
            name: str(schema)
            for name, schema in found.items()
            if isinstance(schema, InvalidSchemaError)
        }

    @property
    def turn(self) -> asyncio.Lock:
        """Held while data is checked apart: one card has no more than one thread at a time."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    def _schema(self, name: str) -> BoundedSchema | InvalidSchemaError | None:
        """Read a schema when data first names it: a card may hold many, and costly ones."""
        if name not in self._documents:
            return None
        if name not in self._read:
            before = time.thread_time()
            try:
                self._read[name] = BoundedSchema(
                    self._documents[name], max_seconds=min(MAX_SECONDS, self._seconds)
                )
            except InvalidSchemaError as exc:
                self._read[name] = exc
            self._seconds -= time.thread_time() - before
        return self._read[name]

    def verdict(
        self, part: DataPart, name: str, location: str, steps: Steps | None = None
    ) -> DataVerdict:
        """Check a part against the schema of a name, with what may be spent if that is shared."""

        def said(fit: Fit, path: str | None = None, rule: str | None = None) -> DataVerdict:
            return DataVerdict(
                part=part, location=location, schema=name, fit=fit, path=path, rule=rule
            )

        schema = self._schema(name)
        if schema is None:
            return said(Fit.UNKNOWN_SCHEMA)
        if isinstance(schema, InvalidSchemaError):
            return said(Fit.UNDECIDED, rule=str(schema))
        try:
            complaint = schema.check(part.data, steps)
        except UndecidedError as exc:
            return said(Fit.UNDECIDED, rule=str(exc))
        if complaint is None:
            return said(Fit.VALID)
        return said(Fit.INVALID, complaint.path, complaint.rule)


def _extension_params(card: Mapping[str, JsonValue]) -> Mapping[str, JsonValue] | None:
    """Return the params of the extension; None if the card does not declare it."""
    capabilities = card.get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict) and extension.get("uri") == EXTENSION_URI:
            params = extension.get("params")
            return params if isinstance(params, dict) else {}
    return None


def check_structured_data(update: TaskUpdate, schemas: CardSchemas) -> list[DataVerdict]:
    """Check what an agent sends: every data part of its artifacts and messages that names a schema.

    A task's history is left out: it is mostly what the client itself said. Pure, but not free:
    a small part takes about a millisecond, all of them together at most about two seconds; what is
    left then is undecided. In an event loop, `await check_structured_data_apart(update, schemas)`.
    """
    steps = Steps(MAX_STEPS)  # of the update: ten thousand parts are one sender's one body
    return [
        schemas.verdict(part, part.schema_name, location, steps)
        for location, part in _data_parts(update)
        if part.schema_name is not None
    ]


async def check_structured_data_apart(
    update: TaskUpdate, schemas: CardSchemas
) -> list[DataVerdict]:
    """Check the same on a thread of its own kind, of which there are two.

    Each card's data waits for its turn, so that an agent with a costly schema holds up its own.
    """
    if next(_data_parts(update), None) is None:
        return []
    async with schemas.turn:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_threads(), check_structured_data, update, schemas)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="pushkit-schemas")


def check_structured_input(
    message: Message, schemas: CardSchemas, location: str = "message"
) -> DataVerdict | None:
    """Check what a client sends to an agent: the first part that names a schema, if one does.

    The extension has the agent ignore the others (§3). With a verdict that is not valid the answer
    should say so; with any verdict, for a message of a task that runs already, the answer must say
    that the data is rejected.
    """
    for place, part in _of_parts(message.parts, location):
        if part.schema_name is not None:
            return schemas.verdict(part, part.schema_name, place)
    return None


def _data_parts(update: TaskUpdate) -> Iterator[tuple[str, DataPart]]:
    match update:
        case TaskSnapshot():
            if update.task.status.message is not None:
                yield from _of_parts(update.task.status.message.parts, "status.message")
            for index, artifact in enumerate(update.task.artifacts):
                yield from _of_parts(artifact.parts, f"artifacts.{index}")
        case StatusUpdate():
            if update.status.message is not None:
                yield from _of_parts(update.status.message.parts, "status.message")
        case ArtifactUpdate():
            yield from _of_parts(update.artifact.parts, "artifact")
        case MessageUpdate():
            yield from _of_parts(update.message.parts, "message")


def _of_parts(parts: tuple[Part, ...], location: str) -> Iterator[tuple[str, DataPart]]:
    for index, part in enumerate(parts):
        if isinstance(part, DataPart):
            yield f"{location}.parts.{index}", part

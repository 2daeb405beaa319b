"""Checks data parts that name a schema, by the "Input/output schemas" extension, v1.

A data part whose metadata contain `mimeType: application/json;schema=<name>` must fit the schema
that the agent's card declares under that name (extension §1, §2, §4). Needs the extra `schemas`.
"""

from __future__ import annotations

import asyncio
import functools
import time
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
from pushkit.scheduling.event_loop import LoopLock
from pushkit.schemas.bounded_schema import (
    MAX_SECONDS,
    MAX_STEPS,
    BoundedSchema,
    Steps,
    UndecidedError,
    require_extra,
)

__all__ = [
    "CardSchemas",
    "DataVerdict",
    "Fit",
    "check_structured_data",
    "check_structured_data_apart",
    "check_structured_input",
]

EXTENSION_URI = (
    "https://raw.githubusercontent.com/facultyai/a2a-extension-object-schemas/refs/heads/main/v1"
)
_MAX_SCHEMAS = 64
# Computing time for reading all schemas of a card.
_MAX_READING_SECONDS = 5.0
_THREADS = 2


class Fit(StrEnum):
    """Whether data fits the schema that it names."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN_SCHEMA = "unknown-schema"
    """The card declares no schema of that name."""
    UNDECIDED = "undecided"
    """The schema is unusable, or the check would cost too much. Do not treat the data as valid."""


@record(frozen=True, slots=True, kw_only=True)
class DataVerdict:
    """The result of checking one data part."""

    part: DataPart
    location: str  # of the part in the update, such as `artifacts.0.parts.1`
    schema: str  # the schema that the part names
    fit: Fit
    path: str | None = None  # a JSON Pointer to the first value that does not fit
    # The keyword that this value violates, or why the schema is unusable.
    rule: str | None = None


class CardSchemas:
    """The schemas that an agent's card declares, by name.

    A hostile or malformed schema only affects the data that names it.

    Raises:
        InvalidSchemaError: There are more than 64 schemas.
        ConfigError: The extra `schemas` is not installed.
    """

    def __init__(self, schemas: Mapping[str, JsonValue]) -> None:
        if len(schemas) > _MAX_SCHEMAS:
            raise InvalidSchemaError(f"{len(schemas)} schemas, expected at most {_MAX_SCHEMAS}")
        if schemas:
            require_extra()  # fail when settings are read, not when data arrives
        self._documents = dict(schemas)
        self._read: dict[str, BoundedSchema | InvalidSchemaError] = {}
        self._seconds = _MAX_READING_SECONDS
        # Held while a thread checks data, so that one card never uses more than one thread.
        self.lock: LoopLock = LoopLock()

    @classmethod
    def of_card(cls, card: Mapping[str, JsonValue]) -> CardSchemas:
        """Read the schemas of a card, whose signature the caller has verified.

        They are at the card's root (extension §1) or in the extension's `params`, since an A2A 1.0
        card has no custom members at its root. A card that does not declare the extension has none.

        Raises:
            InvalidSchemaError: The schemas are not an object, there are more than 64, or two of the
                same name differ.
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
        """The schemas that cannot be used, by name, and why."""
        found = {name: self._schema(name) for name in self._documents}
        return {
            name: str(schema)
            for name, schema in found.items()
            if isinstance(schema, InvalidSchemaError)
        }

    def _schema(self, name: str) -> BoundedSchema | InvalidSchemaError | None:
        """Return a schema, read when data first names it: a card may have many costly ones."""
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
        """Check a part against the named schema; several checks may share `steps`."""

        def result(fit: Fit, path: str | None = None, rule: str | None = None) -> DataVerdict:
            return DataVerdict(
                part=part, location=location, schema=name, fit=fit, path=path, rule=rule
            )

        schema = self._schema(name)
        if schema is None:
            return result(Fit.UNKNOWN_SCHEMA)
        if isinstance(schema, InvalidSchemaError):
            return result(Fit.UNDECIDED, rule=str(schema))
        try:
            complaint = schema.check(part.data, steps)
        except UndecidedError as exc:
            return result(Fit.UNDECIDED, rule=str(exc))
        if complaint is None:
            return result(Fit.VALID)
        return result(Fit.INVALID, complaint.path, complaint.rule)


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
    """Check every data part that names a schema in the artifacts and messages of an agent's update.

    A task's history is not checked: most of it is the client's own. A small part takes about a
    millisecond; all parts together take at most about two seconds, and those left then are
    undecided. In an event loop, use `await check_structured_data_apart(update, schemas)`.
    """
    steps = Steps(MAX_STEPS)  # for the whole update, since one body may hold thousands of parts
    return [
        schemas.verdict(part, part.schema_name, location, steps)
        for location, part in _data_parts(update)
        if part.schema_name is not None
    ]


async def check_structured_data_apart(
    update: TaskUpdate, schemas: CardSchemas
) -> list[DataVerdict]:
    """Do what `check_structured_data` does on one of two threads for this purpose.

    Checks for one card run one after another, so that an agent with a costly schema only delays
    itself.
    """
    if next(_data_parts(update), None) is None:
        return []
    async with schemas.lock.here:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_threads(), check_structured_data, update, schemas)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="pushkit-schemas")


def check_structured_input(
    message: Message, schemas: CardSchemas, location: str = "message"
) -> DataVerdict | None:
    """Check the first data part that names a schema in a client's message to an agent, if any.

    The agent ignores the other parts (extension §3). Unless the verdict is valid, its answer should
    say so. If the task of the message runs already, its answer must always say that the data is
    rejected.
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

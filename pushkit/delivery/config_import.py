"""Imports the push configs in a2a-sdk's SQL store as subscriptions.

Rows of a2a-sdk 0.3 have neither owner nor version, and get a filler as owner when the SDK migrates
them to 1.x.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from pushkit.a2a import PushConfig, TaskState, WireVersion, parse_push_config
from pushkit.bounded_json import read_json_object
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.registrar import Registrar, checked_key
from pushkit.errors import ConfigError, InvalidPushConfigError, MalformedJsonError
from pushkit.net.destination import DestinationPolicy
from pushkit.outbox.schema import open_outbox
from pushkit.progress import advance
from pushkit.record import record
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Row, Script, Statement
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import EVERYTHING, Profile, SubscriptionKey
from pushkit.url import unchecked_host

_NO_OWNERS: Final = (None, "legacy_v03_no_user_info")
_FINAL: Final = {each.value for each in TaskState if each.terminal}
_SQLITE_URL: Final = re.compile(r"sqlite(\+\w+)?:///")  # SQLAlchemy's, before the path
_BATCH: Final = 100  # that are stored in one transaction


class Imported(StrEnum):
    """What becomes of a config."""

    IMPORTED = "imported"
    KNOWN = "known"
    """There is a subscription of this task, owner and id already, which stays as it is."""
    ENDED = "ended"
    """Its task has ended, or is not in the table of tasks."""
    REFUSED = "refused"
    """It cannot be registered; the reason says why."""


@record(frozen=True, slots=True, kw_only=True)
class ImportedConfig:
    """A config of the SDK's store, and what becomes of it."""

    key: SubscriptionKey
    version: WireVersion  # of its notifications
    result: Imported = Imported.IMPORTED
    reason: str = ""
    host: str = ""  # of its webhook
    origin: str = ""
    config: PushConfig | None = None  # unless it is left


@record(frozen=True, slots=True, kw_only=True)
class ConfigImport:
    """How to import.

    Attributes:
        source: The SDK's database: the path of a SQLite file, or a PostgreSQL DSN.
        configs_table: Its table of configs.
        tasks_table: Its table of tasks; empty if there is none, which imports all.
        policy: Which webhooks are allowed.
        owner: The owner of the rows that have none; None if all have one.
        old_version: What the clients speak whose rows name no version, or 0.3.
        opened: Decrypts the data of a row.
    """

    source: str
    configs_table: str
    tasks_table: str
    policy: DestinationPolicy
    owner: str | None
    old_version: WireVersion
    opened: Callable[[bytes], bytes]

    async def run(self, database: Database, *, dry_run: bool) -> list[ImportedConfig]:
        """Register what can be, and is not in the outbox yet; return what became of each config.

        Args:
            database: The outbox, open; for a dry run, to be read.
            dry_run: Only return what would become of them.

        Raises:
            ConfigError: The source cannot be a database, or rows have no owner and there is none.
            StorageError: One of the databases is out of reach, or the source has no such tables.
        """
        rows = await open_outbox(_SQLITE_URL.sub("", self.source)).look(self._rows())
        decided = [self._decide(dict(row)) for row in rows]
        registrar = None
        if not dry_run:
            registrar = Registrar(database, SenderOptions(), Vault(SecretKeys.from_environment()))
        results: list[ImportedConfig] = []
        for start in range(0, len(decided), _BATCH):
            store = functools.partial(_store, decided[start : start + _BATCH], registrar)
            results += await (
                database.read(store()) if dry_run else database.write_patiently(store)
            )
            advance(len(results) - start)
        return results

    def _rows(self) -> Script[Sequence[Row]]:
        columns = joined = ""
        if self.tasks_table:
            columns = ", tasks.id AS found_task, tasks.status AS status"
            joined = (
                f" LEFT JOIN {_quoted(self.tasks_table)} AS tasks ON tasks.id = configs.task_id"
            )
        return (
            yield Statement(
                f"SELECT configs.*{columns} FROM {_quoted(self.configs_table)} AS configs{joined}"  # noqa: S608  # quoted
                " ORDER BY configs.task_id, configs.config_id"
            )
        )

    def _decide(self, row: dict[str, Any]) -> ImportedConfig:
        owner = self.owner if row.get("owner") in _NO_OWNERS else str(row["owner"])
        is_new = row.get("protocol_version") == WireVersion.V1_0
        found = ImportedConfig(
            key=SubscriptionKey("", str(row["task_id"]), owner or "", str(row["config_id"])),
            version=WireVersion.V1_0 if is_new else self.old_version,
        )
        if self.tasks_table and (row["found_task"] is None or _has_ended(str(row["status"]))):
            return replace(found, result=Imported.ENDED)
        if owner is None:
            raise ConfigError(
                f"config {found.key.config_id!r} of task {found.key.task_id!r} has no owner:"
                " expected --owner NAME, as the agent's authentication names its user; '' for none"
            )
        try:
            document = read_json_object(self.opened(bytes(row["config_data"])))
            config = parse_push_config(document, WireVersion.V1_0 if is_new else WireVersion.V0_3)
            found = replace(found, host=unchecked_host(config.url), config=config)
            checked_key(*found.key)
            return replace(found, origin=self.policy.check(config.url).origin)
        except MalformedJsonError:
            reason = "not JSON: expected the key of --fernet-key-file, if it is encrypted"
        except InvalidPushConfigError as exc:
            reason = str(exc)
        return replace(found, result=Imported.REFUSED, reason=reason, config=None)


def _store(
    batch: Sequence[ImportedConfig], registrar: Registrar | None
) -> Script[list[ImportedConfig]]:
    """Register what the outbox does not have; without a registrar, only look."""
    results = []
    for each in batch:
        result, reason = each.result, each.reason
        if each.config and (yield from subscriptions.of_owner(**each.key._asdict())):
            result = Imported.KNOWN
        elif each.config and registrar:
            put = registrar.put(
                each.key,
                each.config,
                version=each.version,
                origin=each.origin,
                profile=Profile.STANDARD,
                wanted=EVERYTHING,
            )
            try:
                yield from put
            except InvalidPushConfigError as exc:  # a quota; it has written nothing
                result, reason = Imported.REFUSED, str(exc)
        results.append(replace(each, result=result, reason=reason))
    return results


def _has_ended(status: str) -> bool:
    state = str(read_json_object(status.encode()).get("state"))  # TASK_STATE_FAILED; 0.3: failed
    return state.removeprefix("TASK_STATE_").lower() in _FINAL


def _quoted(table: str) -> str:
    """Return the name of a table, which may follow that of a schema, as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))

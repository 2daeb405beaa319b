"""`pushkit import`: takes over push configs that another program stored.

Rows of a2a-sdk 0.3 have neither owner nor version, and get a filler as owner when the SDK migrates
them to 1.x.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click

from pushkit.a2a import PushConfig, TaskState, WireVersion, parse_push_config
from pushkit.bounded_json import read_json_object
from pushkit.cli.databases import Outbox, outbox_option
from pushkit.cli.destinations import load_destinations
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.registrar import Registrar, checked_key
from pushkit.errors import ConfigError, InvalidPushConfigError, MalformedJsonError
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.outbox.schema import open_outbox
from pushkit.progress import advance
from pushkit.record import record
from pushkit.secrets.sealing import SecretKeys, fernet_opener
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.location import is_missing
from pushkit.storage.script import Row, Script, Statement
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import EVERYTHING, Profile, SubscriptionKey
from pushkit.terminal.options import FILE, PATH, allow_option, choice_option, variable_option
from pushkit.terminal.output import columns, example, table_of
from pushkit.url import unchecked_host

_COLUMNS: Final = columns(
    "TASK=key.task_id key.owner CONFIG=key.config_id A2A=version host result reason"
)
_NO_OWNERS: Final = (None, "legacy_v03_no_user_info")
_FINAL: Final = {each.value for each in TaskState if each.terminal}
_SQLITE_URL: Final = re.compile(r"sqlite(\+\w+)?:///")  # SQLAlchemy's, before the path
_BATCH: Final = 100  # that are stored in one transaction


class _Imported(StrEnum):
    """What becomes of a config."""

    IMPORTED = "imported"
    KNOWN = "known"
    """There is a subscription of this task, owner and id already, which stays as it is."""
    ENDED = "ended"
    """Its task has ended, or is not in the table of tasks."""
    REFUSED = "refused"
    """It cannot be registered; the reason says why."""


@record(frozen=True, slots=True, kw_only=True)
class _ImportedConfig:
    """A config of the SDK's store, and what becomes of it."""

    key: SubscriptionKey
    version: WireVersion  # of its notifications
    result: _Imported = _Imported.IMPORTED
    reason: str = ""
    host: str = ""  # of its webhook
    origin: str = ""
    config: PushConfig | None = None  # unless it is left


@record(frozen=True, slots=True, kw_only=True)
class _ConfigImport:
    """How to import; the names are those of the options."""

    source: str
    configs_table: str
    tasks_table: str
    policy: DestinationPolicy
    owner: str | None
    old_version: WireVersion
    opened: Callable[[bytes], bytes]  # decrypts the data of a row

    async def run(self, database: Database, *, dry_run: bool) -> list[_ImportedConfig]:
        """Register what can be, and is not in the outbox yet; return what became of each config.

        Raises:
            ConfigError: The source cannot be a database, or rows have no owner and there is none.
            StorageError: One of the databases is out of reach, or the source has no such tables.
        """
        source = _SQLITE_URL.sub("", self.source)
        if is_missing(source):
            raise ConfigError(f"--from: there is no file {source}, and it is no PostgreSQL DSN")
        rows = await open_outbox(source).look(self._rows())
        decided = [self._decide(dict(row)) for row in rows]
        registrar = None
        if not dry_run:
            registrar = Registrar(database, SenderOptions(), Vault(SecretKeys.from_environment()))
        results: list[_ImportedConfig] = []
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

    def _decide(self, row: dict[str, Any]) -> _ImportedConfig:
        owner = self.owner if row.get("owner") in _NO_OWNERS else str(row["owner"])
        is_new = row.get("protocol_version") == WireVersion.V1_0
        found = _ImportedConfig(
            key=SubscriptionKey("", str(row["task_id"]), owner or "", str(row["config_id"])),
            version=WireVersion.V1_0 if is_new else self.old_version,
        )
        if self.tasks_table and (row["found_task"] is None or _has_ended(str(row["status"]))):
            return replace(found, result=_Imported.ENDED)
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
        return replace(found, result=_Imported.REFUSED, reason=reason, config=None)


def _store(
    batch: Sequence[_ImportedConfig], registrar: Registrar | None
) -> Script[list[_ImportedConfig]]:
    """Register what the outbox does not have; without a registrar, only look."""
    results = []
    for each in batch:
        result, reason = each.result, each.reason
        if each.config and (yield from subscriptions.of_owner(**each.key._asdict())):
            result = _Imported.KNOWN
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
                result, reason = _Imported.REFUSED, str(exc)
        results.append(replace(each, result=result, reason=reason))
    return results


def _has_ended(status: str) -> bool:
    state = str(read_json_object(status.encode()).get("state"))  # TASK_STATE_FAILED; 0.3: failed
    return state.removeprefix("TASK_STATE_").lower() in _FINAL


def _quoted(table: str) -> str:
    """Return the name of a table, which may follow that of a schema, as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


@click.group("import", epilog=example("pushkit import a2a-sdk --from agent.db --dry-run"))
def import_() -> None:
    """Take over push configs that another program stored."""


@import_.command(
    "a2a-sdk",
    epilog=example(
        "pushkit import a2a-sdk --from agent.db --database outbox.db --dry-run",
        "pushkit import a2a-sdk --from postgresql://agent@db/agent --fernet-key-file fernet.key",
    ),
)
@click.option(
    "--from",
    "source",
    metavar="DSN",
    required=True,
    help="The SDK's database: the path of a SQLite file, or a PostgreSQL DSN.",
)
@outbox_option(lambda database: database)
@click.option("--fernet-key-file", type=FILE, help="A file with the SDK's `encryption_key`.")
@click.option("--owner", help="The owner of configs that name none.")
@choice_option(
    "--old-version",
    of=(WireVersion.V0_3, WireVersion.V0_1, WireVersion.V1_0),
    default=WireVersion.V0_3.value,
    help="The A2A version of clients whose config an a2a-sdk before 1.0 stored.",
)
@click.option(
    "--configs-table", default="push_notification_configs", help="The SDK's table of configs."
)
@click.option("--tasks-table", default="tasks", help="The SDK's table of tasks; '' for none.")
@allow_option
@variable_option(
    "--destinations",
    type=PATH,
    envvar="PUSHKIT_DESTINATIONS",
    help="The TOML file of the workers, with destination rules.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
def a2a_sdk(
    *,
    outbox: Outbox[Database],
    fernet_key_file: Path | None,
    allow: tuple[str, ...],
    destinations: Path | None,
    dry_run: bool,
    **given: Any,
) -> None:
    """Register the push configs in a2a-sdk's SQL store.

    This is its `DatabasePushNotificationConfigStore`, which is only read. Configs of ended tasks
    stay behind. What the outbox has already stays as it is, so this may be repeated. Webhooks that
    the destination rules refuse are listed with the reason, and the exit status is 1.
    """
    rules = load_destinations(destinations)["destinations"] if destinations else DestinationRules()
    importing = _ConfigImport(
        policy=DestinationPolicy(allow, rules),
        opened=fernet_opener(fernet_key_file) if fernet_key_file else lambda data: data,
        **given,
    )
    run = functools.partial(importing.run, dry_run=dry_run)
    found = outbox.look(run) if dry_run else outbox.change(run)
    if listed := [each for each in found if each.result is not _Imported.ENDED]:
        click.echo(table_of(_COLUMNS, listed))
    counts = Counter(each.result for each in found)
    would = "dry run: " if dry_run else ""
    click.echo(would + ", ".join(f"{counts[result]} {result}" for result in _Imported), err=True)
    if counts[_Imported.REFUSED]:
        raise SystemExit(1)

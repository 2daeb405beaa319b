"""Writes the reference from the code: every option, setting, command, metric, event and code.

It also writes the table of the receiver's steps into docs/wire.md, between two marks, and draws
them and a delivery's life into docs/images/.

python docs/reference/generate.py            # writes the pages into docs/reference/
python docs/reference/generate.py --check    # only says whether these pages are up to date
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from described import described
from drawings import life_drawing, receiver_steps, steps_drawing
from python_pages import python_pages

from pushkit.errors import CodeTable, anchor_of
from pushkit.options import REQUIRED, Option, options_of
from pushkit.terminal.command import BrokenCommand
from pushkit.terminal.tables import SettingsTable

HERE = Path(__file__).resolve().parent
_WRITTEN_BY = "written by docs/reference/generate.py"
_HEAD = f"<!-- {_WRITTEN_BY.capitalize()}: change the code, and run that. -->\n\n"

# How to fix each error that is neither a refusal nor a reason why a delivery failed.
_ERROR_REMEDIES = {
    "watch_lost": "Nothing: another gateway watches the task. Often: the database was out of"
    " reach for longer than a lease.",
    "task_refused": "The caller may not see the task, or the agent has forgotten it: its log says"
    " which.",
    "upstream": "Look whether the agent runs, and whether --upstream names it.",
    "alert_failed": "The log has the alert, and why it was not sent: check the alert command, or"
    " the webhook's URL and secret.",
    "backlog_full": "The webhook is down or too slow: the dashboard shows why. `max_backlog` and"
    " the options beside it set the limits.",
    "card_refused": "`pushkit card verify` shows why each signature fails.",
    "card_unavailable": "Check that the URL is that of the card itself, without a redirect: the"
    " message has the answer.",
    "commit_uncertain": "Repeat `notify()` with the same `idempotency_key`: an update that was"
    " stored is not stored twice. Before another operation, look whether it was stored.",
    "forward_failed": "The log of the forward's target says why. The forward is repeated"
    " automatically.",
    "recovery_failed": "The message has the agent's answer. Ask again once that is solved.",
    "idempotency_conflict": "Use a new idempotency key for each update.",
    "invalid_push_config": "The client has to send a config that its A2A version allows: the"
    " message says what is wrong.",
    "invalid_schema": "The card's author has to correct the schema: the message names the place or"
    " the limit.",
    "invalid_update": "Add what this A2A version requires: the message names it.",
    "invalid_url": "Use a URL of scheme, host and path, without user, fragment or control"
    " characters.",
    "jwks": "Fetch the URL by hand: it has to answer 200 with public keys, each with a `kid`.",
    "key_ring": "The message says what is required; `pushkit keys list` shows the states of the"
    " keys.",
    "malformed_card": "Check that the document is an agent card: the message says where it is"
    " malformed.",
    "no_canonical_form": "Use only values that JSON can carry: integers below 2^53, no lone"
    " surrogates.",
    "no_task": "Read the agent's answer in `SentMessage.message`: there is nothing to wait for.",
    "mailbox_refused": "Compare its name and token with those in the receiver's settings.",
    "outbound": "The message says how far the request came; a later attempt may succeed.",
    "payload_too_large": "Raise `max_body_bytes`, or send artifacts by URL.",
    "push_config_api": "The client has to correct its request: the message names the member.",
    "refused": "Each refusal has its own code: see above.",
    "schema": "Run `pushkit migrate` or `receiver migrate` if the schema is older; if it is newer,"
    " install the version that wrote it.",
    "snapshot_required": "Pass `snapshot=` to `notify()`: the task, or a coroutine function that"
    " returns it.",
    "too_many_push_configs": "The client has to delete configs that it no longer needs; or raise"
    " `max_configs_per_task`.",
    "too_many_subscriptions": "Remove subscriptions that are no longer needed, or raise"
    " `max_subscriptions_per_owner`.",
    "unsupported_version": "Use one of the supported versions: 0.1, 0.2, 0.3 and 1.0.",
}


def main() -> int:
    """Write the pages, or say which are out of date."""
    stale = []
    try:
        written = pages()
    except click.ClickException as exc:
        sys.stderr.write(f"error: {exc.message}\n")
        return 1
    for name, text in written.items():
        path = HERE / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"out of date: {', '.join(stale)}: run docs/reference/generate.py\n")
        return 1
    return 0


def pages() -> dict[str, str]:
    """Return every page and every drawing, by its file."""
    found = {
        "sender-options": sender_options(),
        "receiver-settings": receiver_settings(),
        "command-line": command_line(),
        "metrics": metrics(),
        "events": events(),
        "codes": codes(),
        **dict(python_pages()),
    }
    written = {
        f"{name}.md": _HEAD + "\n".join(parts).rstrip() + "\n" for name, parts in found.items()
    }
    written |= {"../images/steps.svg": steps_drawing(), "../images/delivery.svg": life_drawing()}
    wire = (HERE.parent / "wire.md").read_text("utf-8")
    begin, end = f"<!-- steps: {_WRITTEN_BY} -->\n", "<!-- /steps -->\n"
    before, _, rest = wire.partition(begin)
    table = "\n".join(steps_of_a_receiver())
    return {**written, "../wire.md": f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"}


# --- options and settings ------------------------------------------------------------------------


def sender_options() -> Iterator[str]:
    """Describe `SenderOptions`, and the classes of its members."""
    from pushkit import (
        AlertOptions,
        BreakerPolicy,
        DestinationRules,
        RetryPolicy,
        SenderOptions,
        Signing,
    )
    from pushkit.outbox.retention import Retention
    from pushkit.scheduling.retry import DEFAULT_SCHEDULE, MAX_AGE

    yield "# Options of the sender\n"
    yield (
        "`PushSender(options=SenderOptions(...))`, and the classes of its members. Times are"
        " `timedelta`s."
    )
    yield from _options(SenderOptions)
    waits = ", ".join(_span(timedelta(seconds=each)) for each in DEFAULT_SCHEDULE)
    last = f"{len(DEFAULT_SCHEDULE) + 1} attempts, or {_span(MAX_AGE)}"
    yield from _options(RetryPolicy, {"wait": f"{waits}; each ± 20 %", "stop": last})
    for kind in (BreakerPolicy, Retention):
        yield from _options(kind)
    yield from _options(DestinationRules, {"ports": ", ".join(map(str, DestinationRules().ports))})
    for kind in (Signing, AlertOptions):
        yield from _options(kind)


def receiver_settings() -> Iterator[str]:
    """Describe the TOML file of `receiver serve`, and the classes for Python."""
    from pushkit import AlertOptions
    from pushkit.terminal.options import DashboardOptions
    from receiver import InboxRetention, Limits, Receiver, TrustedSender
    from receiver.callbacks.registry import CallbackRegistry
    from receiver.limits import ConnectionLimits
    from receiver.mailbox.service import MailboxOptions
    from receiver.settings import ReceiverSettings
    from receiver.settings.tables import (
        AlertSettings,
        CallbackSettings,
        DashboardSettings,
        ForwardSettings,
        MailboxSettings,
        RetentionSettings,
        SenderSettings,
        TlsSettings,
    )

    yield "# Settings of the receiver\n"
    yield "The TOML file of `receiver serve`. An environment variable named `RECEIVER_` and the"
    yield "setting's name in capitals overrides a setting of the top level: `RECEIVER_PROXY` keeps"
    yield "a proxy's password out of the file. A rate is how many a second; twice that may come at"
    yield 'once. `"none"` in place of seconds is any time, `"forever"` in place of days for ever.'
    yield "`proxy` and `ca_file` are for forwards, too."
    yield from _settings("The file", ReceiverSettings, Receiver, Limits, ConnectionLimits)
    yield from _settings("`[[senders]]`", SenderSettings, TrustedSender)
    yield from _settings("`[[callbacks]]`", CallbackSettings, CallbackRegistry.add)
    yield from _settings("`[[forwards]]`", ForwardSettings, CallbackRegistry.add)
    yield from _settings("`[[mailbox]]`", MailboxSettings, CallbackRegistry.add, MailboxOptions)
    yield from _settings("`[retention]`", RetentionSettings, InboxRetention)
    yield from _settings("`[tls]`", TlsSettings)
    yield from _settings("`[dashboard]`", DashboardSettings, DashboardOptions)
    yield from _settings("`[alerts]`", AlertSettings, AlertOptions)
    yield "\n## In Python\n"
    yield "The arguments of `Receiver(limits=, retention=, senders=)`."
    for kind in (Limits, InboxRetention, TrustedSender):
        yield from _options(kind)


def _options(kind: type, said: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    docs = described(kind)
    rows = [
        (f"`{name}`", said.get(name) or _default(option), docs[name])
        for name, option in options_of(kind).items()
    ]
    yield f"\n## {kind.__name__}\n\n{_summary(kind)}\n"
    yield from _table(("option", "default", ""), rows)


def _settings(title: str, table: type[SettingsTable], *like: Any) -> Iterator[str]:
    docs = dict(chain.from_iterable(described(kind).items() for kind in (*like, *table.__mro__)))
    defaults, rows = table.defaults(), []
    for name, field in table.model_fields.items():
        in_file = field.alias or name
        base = in_file.removesuffix("_file")
        said = docs.get(name) or f"The same, in a file: {docs[base]}"
        default = "required" if field.is_required() else _shown(defaults[in_file])
        rows.append((f"`{in_file}`", default, said))
    yield f"\n## {title}\n"
    yield from _table(("setting", "default", ""), rows)


def _default(option: Option) -> str:
    return "required" if option.default is REQUIRED else _shown(option.default)


def _shown(value: object) -> str:
    """Return a default as text, with its unit."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, timedelta):
        return _span(value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Enum | str | Path):
        return f"`{value.value if isinstance(value, Enum) else value}`"
    if isinstance(value, frozenset | set | list | tuple):
        return ", ".join(sorted(_shown(each) for each in value)) or "none"
    return _rate(value) if type(value).__name__ == "RateLimit" else "as below"


def _number(value: float) -> str:
    if isinstance(value, int) and value and value % 1024 == 0:
        return f"{value // 2**20:,} MiB" if value % 2**20 == 0 else f"{value // 1024:,} KiB"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _rate(value: Any) -> str:
    return f"{value.per_second:,}/s, {value.burst:,} at once"


def _span(value: timedelta) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if value.total_seconds() >= seconds and value.total_seconds() % seconds == 0:
            return f"{value.total_seconds() / seconds:g} {unit}"
    return f"{value.total_seconds():g} s"


# --- commands ------------------------------------------------------------------------------------


def command_line() -> Iterator[str]:
    """Describe every command of both programs, with its options."""
    from pushkit.cli.main import cli as pushkit
    from receiver.cli import cli as receiver

    yield "# Command line\n"
    yield "## Exit status (exit codes)\n"
    yield from _table(
        ("status", "when"),
        [
            ("0", "success; for `worker` and `serve`, also a stop by SIGTERM or Ctrl-C"),
            ("1", "refused or failed: the error is on stderr"),
            ("2", "an option or an argument is wrong"),
            ("130", "Ctrl-C interrupted long work: run the same command again to continue"),
        ],
    )
    for program, root in (("pushkit", pushkit), ("receiver", receiver)):
        yield f"\n## {program}\n"
        yield from _commands(program, root)


def _commands(path: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is None or isinstance(below, BrokenCommand):
                why = "cannot be found" if below is None else below.reason
                raise click.ClickException(f"{path} {name} {why}: no page was written")
            if not below.hidden:
                yield from _commands(f"{path} {name}", below)
        return
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join([path, *(each.make_metavar(click.Context(command)) for each in arguments)])
    yield f"\n### `{path}`\n\n`{usage}`\n\n{_prose(command.help or '')}\n"
    rows = [
        (
            ", ".join(f"`{word}`" for word in (*option.opts, *option.secondary_opts)),
            _option_default(option),
            _prose(f"{option.help or ''}{_choices(option)}{_variable(option)}"),
        )
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    if rows:
        yield from _table(("option", "default", ""), rows)


def _choices(option: click.Option) -> str:
    if not isinstance(option.type, click.Choice):
        return ""
    words = [getattr(each, "value", each) for each in option.type.choices]
    return f" One of {_code_words(words)}."


def _variable(option: click.Option) -> str:
    return f" Also by the variable `{option.envvar}`." if option.envvar else ""


def _option_default(option: click.Option) -> str:
    if option.required:
        return "required"
    default = option.default
    if default is None or default is False or callable(default) or default == ():
        return ""
    if repr(default).startswith("Sentinel"):
        return ""
    return _shown(default)


# --- metrics, events, codes ----------------------------------------------------------------------


def metrics() -> Iterator[str]:
    """Describe the metrics of both sides."""
    from pushkit.telemetry.sides import RECEIVER_METRICS, SENDER_METRICS

    yield "# Metrics\n"
    yield "How to turn them on, and what the labels mean: [Operating pushkit](../operations.md)."
    for title, found in (("Sender", SENDER_METRICS), ("Receiver", RECEIVER_METRICS)):
        rows = [
            (f"`{each.name}`", each.type.value, _code_words(each.labels), each.help)
            for each in found
        ]
        yield f"\n## {title}\n"
        yield from _table(("metric", "type", "labels", ""), rows)


def events() -> Iterator[str]:
    """Describe every kind of event, with its members."""
    from pushkit.events import Event

    yield "# Events\n"
    yield "The events that `on_event` receives, on both sides (`pushkit.events`)."
    for kind in sorted(_below(Event), key=lambda each: each.__name__):
        if "kind" not in vars(kind):
            continue
        docs = {
            key: value for base in reversed(kind.__mro__) for key, value in described(base).items()
        }
        names = [field.name for field in dataclasses.fields(kind)]
        yield f"\n## {kind.__name__} · `{kind.kind.value}`\n\n{_summary(kind)}\n"  # type: ignore[attr-defined]
        yield from _table(("member", ""), [(f"`{name}`", docs.get(name, "")) for name in names])


def codes() -> Iterator[str]:
    """Describe every code: of answers, failed deliveries, deliveries left unchanged, and errors."""
    # So that every error class is defined, whatever else this run has imported.
    import receiver.integrations.a2a_sdk  # noqa: F401
    from pushkit.delivery.error_codes import ERROR_CODES, explained_codes, meaning, remedy
    from pushkit.errors import PushkitError
    from pushkit.outbox.changes import WhyNot
    from receiver.refusals import REFUSALS

    yield "# Codes\n"
    yield "Codes are stable: match on them, not on messages. The exit codes of commands are in"
    yield "[Command line](command-line.md#exit-status-exit-codes)."
    yield "\n## What the receiver answers\n"
    yield "`202 accepted` and `200 duplicate` accept a notification; the codes below refuse it. The"
    yield "answer has only the code; the receiver's log says what was found and expected.\n"
    rows = [
        (
            _anchored(CodeTable.REFUSAL, code),
            str(row.status),
            ", ".join(f"`{step.word}`" for step in row.steps),
            _wait(row.retry_after),
            row.means,
            row.remedy,
        )
        for code, row in REFUSALS.items()
    ]
    yield from _table(("code", "status", "step", "Retry-After", "meaning", "what to do"), rows)
    yield "\n## Why a delivery failed\n"
    yield "The `last_error` of a delivery, and the `error` of an attempt.\n"
    failed = [
        (_anchored(CodeTable.DELIVERY, code), ERROR_CODES.get(code) or meaning(code), remedy(code))
        for code in explained_codes()
    ]
    yield from _table(("code", "meaning", "what to do"), failed)
    yield "\n## Why nothing was sent again\n"
    yield "Why `redrive`, `resend` or `retry-now` left a delivery unchanged: its own state, or that"
    yield "of its subscription; `unknown` if no delivery has the id.\n"
    yield from _table(("reason",), [(f"`{why.value}`",) for why in WhyNot])
    yield "\n## Errors\n"
    yield "The `code` of each error; all are subclasses of `pushkit.errors.PushkitError`.\n"
    errors, before = [], ""
    for each in sorted(set(_below(PushkitError)), key=attrgetter("code", "__module__", "__name__")):
        if each.__name__.startswith("_"):
            continue
        code = f"`{each.code}`" if each.code == before else _anchored(CodeTable.ERROR, each.code)
        errors.append((code, f"`{each.__name__}`", _summary(each), _mend(each)))
        before = each.code
    yield from _table(("code", "error", "meaning", "what to do"), errors)


def _anchored(table: CodeTable, code: str) -> str:
    """Return a code as the first cell of its row, to which messages can lead."""
    return f'<a id="{anchor_of(table, code)}"></a>`{code}`'


def steps_of_a_receiver() -> Iterator[str]:
    """List the numbered steps of the verification, with what each can refuse a request with."""
    rows = [
        (
            str(step.number),
            _code_words(step.words),
            "; ".join(step.checks),
            "; ".join(
                f"{status} {', '.join(f'`{code}`' for code in codes)}"
                for status, codes in step.refusals.items()
            ),
        )
        for step in receiver_steps()
    ]
    yield "![The steps of a receiver, and what each refuses](images/steps.svg)\n"
    yield from _table(("step", "named", "check", "refusal"), rows)


def _mend(error: type[Any]) -> str:
    from pushkit.delivery.error_codes import ERROR_CODES, remedy
    from pushkit.errors import InboundError
    from receiver.refusals import REFUSALS

    if issubclass(error, InboundError) and error.code in REFUSALS:
        return REFUSALS[error.code].remedy
    return remedy(error.code) if error.code in ERROR_CODES else _ERROR_REMEDIES[error.code]


def _wait(value: timedelta | None) -> str:
    return "" if value is None else _span(value)


# --- Markdown ------------------------------------------------------------------------------------


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        if each.__module__.split(".")[0] in ("pushkit", "receiver"):
            yield each
            yield from _below(each)


def _summary(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _prose(text: str) -> str:
    return " ".join(text.replace("\b", "").split())


def _code_words(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


if __name__ == "__main__":
    sys.exit(main())

"""The reference of the Python API: every public name with its signature, from the docstrings.

`generate.py` writes these pages. Names are grouped by what a reader wants to do; a public name in
no group is an error, so that none is forgotten.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import griffe
from described import described

WIDTH = 92  # columns of a signature
MADE_ONLY = {"DashboardAccess", "Tracing"}  # callers make them, and call nothing of them
# Every name that these export has to be in a group.
EXPORTING = (
    "pushkit",
    "pushkit.a2a",
    "pushkit.cards",
    "pushkit.schemas",
    "pushkit.integrations.a2a_sdk",
    "pushkit.integrations.fasta2a",
    "pushkit.integrations.push_config_api",
    "receiver",
    "receiver.testing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One page: what a reader wants to do, and the names for that.

    Attributes:
        page: The page's name.
        title: Its title.
        wants: What a reader wants.
        lead: What comes before the names, in Markdown.
        names: The names after the module from which they are imported, in the order of the page.
    """

    page: str
    title: str
    wants: str
    lead: str
    names: dict[str, str]


GROUPS = (
    Group(
        page="sending",
        title="Send updates",
        wants="send updates: the sender, its options, what came of an update",
        lead="How to: [Send](../../sending.md). Every option with its default: [Options of the"
        " sender](../sender-options.md).",
        names={
            "pushkit": "PushSender NotifyResult NotifiedDelivery RefusedRecipient SenderOptions"
            " RetryPolicy wait_schedule BreakerPolicy Retention Signing Scheme Profile"
            " AlertOptions __version__",
        },
    ),
    Group(
        page="subscriptions",
        title="Register webhooks",
        wants="register webhooks: push configs, filters, destinations and their credentials",
        lead="How to: [Push configs](../../push-config-api.md), [Destinations](../../destinations"
        ".md), [Credentials](../../credentials.md).",
        names={
            "pushkit": "PushConfig Authentication Filter Subscription SubscriptionState"
            " SubscriptionFilter DestinationRules DestinationCredentials ClientCertificate"
            " OAuthClient agentvault_credentials",
            "pushkit.a2a": "parse_push_config parse_inline_config format_push_config",
            "pushkit.integrations.push_config_api": "PushConfigApi PushConfigAsgi Caller TaskCheck"
            " TaskOf push_config_app",
        },
    ),
    Group(
        page="updates",
        title="Make and read updates",
        wants="make an update, or read one: tasks, messages, artifacts, their text and data",
        lead="""What an update says, whatever its kind and the version of A2A:

| to read | write |
|---|---|
| the text of a message or an artifact | `message.text()`, `artifact.text()` |
| its structured data | `message.data_values()`, `artifact.data_values()` |
| text and data of what an update brings | `update.text()`, `update.data_values()` |
| files, and everything else | `for part in update.parts`: a `TextPart`, `DataPart`, `RawPart`, \
`UrlPart` or `UnknownPart` |
| the kind of an update | `update.kind`, or `isinstance(update, StatusUpdate)` |
| members that this version does not know | `extra`, of each object |""",
        names={
            "pushkit": "StatusUpdate ArtifactUpdate MessageUpdate TaskSnapshot TaskUpdate"
            " UpdateKind Task TaskStatus TaskState Message Role Artifact TextPart DataPart RawPart"
            " UrlPart decode_update encode_update WireVersion",
            "pushkit.a2a": "UnknownPart UnknownUpdate Part AnyUpdate NativeUpdate parse_update"
            " push_body SNAPSHOT_VERSIONS",
        },
    ),
    Group(
        page="receiving",
        title="Receive notifications",
        wants="receive notifications: callbacks, what they get, trusted senders, verification",
        lead="""How to: [Receive](../../receiving.md). Every setting with its default: \
[Settings of the receiver](../receiver-settings.md).

| a callback of | gets | `task_id`, `state` |
|---|---|---|
| `@receiver.on_update` | a `Notification` | may be None: a message may have no task |
| `@receiver.on_status` | a `StatusNotification` | always there |
| `@receiver.on_artifact` | an `ArtifactNotification` | the task is always there, without state |

`notification.text()` is what the agent said, and `notification.data_values()` its structured \
data, whatever the kind of update.""",
        names={
            "receiver": "Receiver Notification StatusNotification ArtifactNotification"
            " TrustedSender SenderProfile TaskPolicy Expectation Limits RateLimit InboxRetention"
            " Answer WebhookRequest Headers verify_notification VerifiedNotification"
            " TrustSnapshot load_trust fetch_trust InboundError Mailbox MailboxOptions"
            " MailboxRefusedError",
            "receiver.middleware": "ReceiverMiddleware",
            "receiver.forwards": "Forward HttpForward StreamForward CommandForward",
            "pushkit.schemas": "CardSchemas DataVerdict Fit check_structured_data"
            " check_structured_data_apart check_structured_input",
        },
    ),
    Group(
        page="keys",
        title="Keep keys and secrets",
        wants="keep keys and secrets: key rings, a KMS, encryption in the database",
        lead="How to: [Keys](../../keys.md), [Secrets](../../secrets.md).",
        names={
            "pushkit": "KeyRing Algorithm load_key_ring save_key_ring RemoteSigner RemoteKey"
            " SecretKeys",
        },
    ),
    Group(
        page="cards",
        title="Sign and verify agent cards",
        wants="sign and verify agent cards",
        lead="How to: [Agent cards](../../cards.md).",
        names={
            "pushkit.cards": "sign_card sign_card_with SignedCard CardPublisher DocumentResponse"
            " EVERY_SDK verify_card verify_cards fetch_card card_url CARD_PATH LEGACY_CARD_PATH"
            " CardTrust OriginTrust load_card_trust load_public_keys TrustedKeys TrustedKey"
            " CardPolicy CardVerdict SignatureVerdict Decision CardCheck CardOutcome CardSummary"
            " canonicalize Canonical CardForm Coverage FieldCoverage FULL_COVERAGE Uncovered Gap"
            " Omission",
        },
    ),
    Group(
        page="operating",
        title="Operate and observe",
        wants="operate: look into outbox and inbox, redrive, purge, events, dashboards, errors",
        lead="`sender.outbox`, `sender.subscription_admin` and `receiver.inbox` are what the"
        " commands and the dashboards use. The kinds of events: [Events](../events.md); the codes"
        " of errors: [Codes](../codes.md#errors).",
        names={
            "pushkit.delivery.admin": "OutboxAdmin",
            "pushkit": "DeliveryFilter DeliveryState Event PushkitError",
            "pushkit.delivery.subscription_admin": "SubscriptionAdmin",
            "receiver.admin": "InboxAdmin",
            "receiver": "InboxFilter InboxStatus",
            "pushkit.dashboard.app": "sender_dashboard",
            "receiver.dashboard.app": "receiver_dashboard",
            "pushkit.webui.access": "DashboardAccess",
            "pushkit.telemetry.tracing": "Tracing",
            "pushkit.threads": "ServingThread",
        },
    ),
    Group(
        page="frameworks",
        title="Use it in frameworks",
        wants="use it in a framework: a2a-sdk, ADK, fasta2a, CrewAI, ASGI, aiohttp",
        lead="How to: [In frameworks](../../frameworks/README.md).",
        names={
            "pushkit.integrations.a2a_sdk": "A2AIntegration PushkitConfigStore"
            " PushkitNotificationSender",
            "pushkit.integrations.google_adk": "to_a2a",
            "pushkit.integrations.fasta2a": "push_broker PushMiddleware task_in",
            "pushkit.integrations.asgi": "JwksApp CardApp MetricsApp HealthApp",
            "pushkit.integrations.aiohttp": "jwks_route card_routes metrics_route health_route",
            "receiver.integrations.a2a_sdk": "PushClient SentMessage NoTaskError",
            "receiver.integrations.crewai": "ReceiverResults",
        },
    ),
    Group(
        page="testing",
        title="Test a receiver",
        wants="test a receiver, also one of one's own: signed drafts, and the checks",
        lead="How to: [Testing](../../testing.md).",
        names={
            "receiver.testing": "SigningAgent Draft check_receiver CHECKS Finding ReceiverUnderTest"
            " Answer",
        },
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A public name: the module to import it from, the object, and what griffe knows of it."""

    module: str
    name: str
    value: Any
    found: griffe.Object

    @property
    def anchor(self) -> str:
        """The anchor of its heading, as GitHub and mkdocs make it."""
        return self.name.lower()


def python_pages() -> Iterator[tuple[str, list[str]]]:
    """Yield each page's name with its lines: the list of all names, and a page of each group."""
    loader = griffe.GriffeLoader(docstring_parser=griffe.Parser.google)
    for package in ("pushkit", "receiver"):
        loader.load(package, submodules=True)
    entries = {group.page: _entries(group, loader) for group in GROUPS}
    _check_that_all_are_there(entries)
    yield "python", list(_index(entries))
    places: dict[str, str] = {}
    for page, those in entries.items():
        for entry in those:
            places.setdefault(entry.name, f"{page}.md#{entry.anchor}")
    for group in GROUPS:
        text = "\n".join(_page(group, entries[group.page]))
        _check_anchors(text)
        yield f"python/{group.page}", [_linked(text, group.page, places)]


def _entries(group: Group, loader: griffe.GriffeLoader) -> list[Entry]:
    entries = []
    for module, names in group.names.items():
        package = importlib.import_module(module)
        for name in names.split():
            value = getattr(package, name)
            home = getattr(value, "__module__", None)
            path = f"{home}.{value.__qualname__}" if inspect.isroutine(value) else ""
            path = f"{home}.{name}" if inspect.isclass(value) else path or f"{module}.{name}"
            found = loader.modules_collection[path]
            if found.is_alias:
                found = found.final_target
            entries.append(Entry(module=module, name=name, value=value, found=found))
    return entries


def _check_that_all_are_there(entries: dict[str, list[Entry]]) -> None:
    """Raise LookupError if a public name has no place in the reference."""
    there = {id(entry.value) for those in entries.values() for entry in those}
    for module in EXPORTING:
        package = importlib.import_module(module)
        for name in package.__all__:
            if id(getattr(package, name)) not in there:
                raise LookupError(f"{module}.{name} is in no group of docs/reference/{__name__}.py")


def _check_anchors(text: str) -> None:
    """Raise ValueError if two headings of a page have the same anchor."""
    headings = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    anchors = [heading.lower().replace(".", "") for heading in headings]
    twice = {anchor for anchor in anchors if anchors.count(anchor) > 1}
    if twice:
        raise ValueError(f"two headings of a page have the anchor {min(twice)}")


def _index(entries: dict[str, list[Entry]]) -> Iterator[str]:
    yield "# Python\n"
    yield "Every public name, with its signature, by what you want to do:\n"
    for group in GROUPS:
        yield f"- [{group.title}](python/{group.page}.md): {group.wants}"
    for group in GROUPS:
        yield f"\n## {group.title}\n"
        by_module: dict[str, list[str]] = {}
        for entry in entries[group.page]:
            link = f"[`{entry.name}`](python/{group.page}.md#{entry.anchor})"
            by_module.setdefault(entry.module, []).append(link)
        for module, links in by_module.items():
            yield f"- `{module}`: {', '.join(links)}"


def _page(group: Group, entries: Sequence[Entry]) -> Iterator[str]:
    yield f"# {group.title}\n"
    yield group.lead
    for entry in entries:
        yield f"\n## {entry.name}\n"
        yield f"`from {entry.module} import {entry.name}`\n"
        if inspect.isclass(entry.value):
            yield from _class(entry)
        elif isinstance(entry.found, griffe.Function):
            yield from _function(entry.name, entry.found)
        else:
            yield from _constant(entry)


# --- one name ------------------------------------------------------------------------------------


def _constant(entry: Entry) -> Iterator[str]:
    assert isinstance(entry.found, griffe.Attribute)  # noqa: S101  # it is no class or function
    value = re.sub(r"\s+", " ", str(entry.found.value))
    yield f"```python\n{entry.name} = {value if len(value) < 300 else '…'}\n```"
    yield from _sections(entry.found)


def _class(entry: Entry) -> Iterator[str]:
    found, value = entry.found, entry.value
    assert isinstance(found, griffe.Class)  # noqa: S101  # it is a class
    bases = [str(base) for base in found.bases if not str(base).startswith("_")]
    is_enum = issubclass(value, enum.Enum)
    made = None if is_enum or getattr(value, "_is_protocol", False) else _constructor(entry)
    kind = f"class {entry.name}({', '.join(bases)})" if bases else f"class {entry.name}"
    yield f"```python\n{made or kind}\n```"
    yield from _sections(found, without=griffe.DocstringSectionKind.attributes)
    if is_enum:
        yield from _enum(value, found)
    members = {k: v for k, v in _members_of(found).items() if not k.startswith("_")}
    if not is_enum:
        yield from _attributes(entry, members)
    for name, member in () if entry.name in MADE_ONLY else members.items():
        title = f"\n### {entry.name}.{name}\n"
        if isinstance(member, griffe.Function) and _is_of_ours(member):
            yield title
            yield from _function(name, member)


def _members_of(found: griffe.Object) -> dict[str, griffe.Object]:
    """Return the members of a class and of its bases, as far as these are of this project."""
    finals = {name: _final(member) for name, member in found.all_members.items()}
    return {name: member for name, member in finals.items() if member is not None}


def _is_of_ours(member: griffe.Object) -> bool:
    return member.path.split(".")[0] in ("pushkit", "receiver") and member.docstring is not None


def _constructor(entry: Entry) -> str | None:
    """Return how an object of a class is made; None if the class does not say."""
    found = entry.found
    parameters = _fields(entry)
    if parameters is None:
        init = _members_of(found).get("__init__")
        if not isinstance(init, griffe.Function):
            return None
        return _signature(entry.name, init, returns=None)
    return _joined(f"{entry.name}(", parameters, ")")


def _fields(entry: Entry) -> list[str] | None:
    """Return the arguments of a dataclass; None of another class."""
    fields = getattr(entry.value, "__dataclass_fields__", None)
    if fields is None or "__init__" in entry.found.members:
        return None
    members = _members_of(entry.found)
    arguments = [] if not all(field.kw_only for field in fields.values()) else ["*"]
    for name, field in fields.items():
        if not field.init:
            continue
        member = members[name]
        assert isinstance(member, griffe.Attribute)  # noqa: S101  # it is a field
        default = _default(member)
        arguments.append(f"{name}: {member.annotation}{default}")
    return arguments if arguments != ["*"] else []


def _default(member: griffe.Attribute) -> str:
    """Return the default of a dataclass's field, as one would write it in a call."""
    value = "" if member.value is None else str(member.value)
    if not value.startswith("field("):
        return f" = {_plain(value, member)}" if value else ""
    if factory := re.search(r"default_factory=(\w+)", value):
        made = {"dict": "{}", "list": "[]", "lambda": "..."}.get(factory[1], f"{factory[1]}()")
        return f" = {made}"
    plain = re.search(r"default=([^,)]+\)?)", value)
    return f" = {_plain(plain[1], member)}" if plain else ""


_CONSTANT = re.compile(r"(?<![\w.])_?[A-Z][A-Z_\d]+\b(?!\()")


def _plain(value: str, found: griffe.Object) -> str:
    """Return a default with the values of the constants in it, if these are short."""

    def of(match: re.Match[str]) -> str:
        member = found.module.members.get(match[0])
        constant = _final(member) if member is not None else None
        said = str(constant.value) if isinstance(constant, griffe.Attribute) else match[0]
        if len(said) > 60:
            return "..." if match[0].startswith("_") else match[0]
        return said

    return _CONSTANT.sub(of, value)


def _attributes(entry: Entry, members: dict[str, griffe.Object]) -> Iterator[str]:
    """Yield a table of a class's attributes, with types and descriptions."""
    is_dataclass = hasattr(entry.value, "__dataclass_fields__")
    listed = {
        each.name
        for section in (entry.found.docstring.parse("google") if entry.found.docstring else ())
        if section.kind is griffe.DocstringSectionKind.attributes
        for each in section.value
    }
    said: dict[str, str] = {}
    for base in reversed(entry.value.__mro__):
        said |= described(base) if base.__module__.startswith(("pushkit", "receiver")) else {}
    rows = []
    for name, member in members.items():
        if not isinstance(member, griffe.Attribute):
            continue
        text = said.get(name) or (member.docstring.value if member.docstring else "")
        if not is_dataclass and name not in listed and member.docstring is None:
            continue  # an argument of the constructor, or its own business
        kind = "" if member.annotation is None else f"`{member.annotation}`"
        rows.append((f"`{name}`", kind, " ".join(text.split())))
    if rows:
        yield "\n| attribute | type |  |\n|---|---|---|"
        for row in rows:
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _enum(value: type[enum.Enum], found: griffe.Class) -> Iterator[str]:
    yield "\n| member | value |  |\n|---|---|---|"
    for each in value:
        member = found.members.get(each.name)
        text = " ".join(member.docstring.value.split()) if member and member.docstring else ""
        shown = each.value if isinstance(each.value, str) else each.value[0]
        yield f"| `{each.name}` | `{shown}` | {text} |"


def _function(name: str, found: griffe.Function) -> Iterator[str]:
    overloads = found.overloads or [found]
    signatures = [_signature(name, each, returns=each.returns) for each in overloads]
    kind = "async " if "async" in found.labels else ""
    if "classmethod" in found.labels or "staticmethod" in found.labels:
        name = f"{found.parent.name}.{name}" if found.parent else name
        signatures = [_signature(name, each, returns=each.returns) for each in overloads]
    yield "```python\n" + "\n".join(kind + each for each in signatures) + "\n```"
    yield from _sections(found)


def _signature(name: str, found: griffe.Function, *, returns: Any) -> str:
    end = ")" if returns is None else f") -> {returns}"
    arguments: list[str] = []
    starred = False
    parameters = list(found.parameters)
    for number, parameter in enumerate(parameters):
        kind, annotation = parameter.kind, parameter.annotation
        if number == 0 and parameter.name in ("self", "cls"):
            continue
        if kind is griffe.ParameterKind.keyword_only and not starred:
            arguments.append("*")
            starred = True
        if kind is griffe.ParameterKind.var_positional:
            starred = True
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        if stars == "**" and str(annotation).startswith("Unpack["):
            arguments += [] if starred else ["*"]
            arguments += _unpacked(found, str(annotation)[len("Unpack[") : -1])
            continue
        text = f"{stars}{parameter.name}" + (f": {annotation}" if annotation is not None else "")
        if parameter.default is not None and not stars:
            default = _plain(str(parameter.default), found)
            text += f" = {default}" if annotation is not None else f"={default}"
        arguments.append(text)
        behind = parameters[number + 1].kind if number + 1 < len(parameters) else None
        if kind is griffe.ParameterKind.positional_only and behind is not kind:
            arguments.append("/")
    return _joined(f"{name}(", arguments, end)


def _unpacked(found: griffe.Function, name: str) -> list[str]:
    """Return the arguments that a TypedDict stands for; each may be left out."""
    arguments = []
    kinds = [_final(found.module.members[name])]
    assert isinstance(kinds[0], griffe.Class)  # noqa: S101  # a TypedDict
    for base in kinds[0].bases:
        above = found.module.members.get(str(base)) or kinds[0].module.members.get(str(base))
        if above is not None:
            kinds.insert(0, _final(above))
    for kind in kinds:
        if isinstance(kind, griffe.Class):
            arguments += [f"{key}: {each.annotation} = ..." for key, each in kind.members.items()]
    return arguments


def _final(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """Return what a member is; None if it was imported from elsewhere."""
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None


def _joined(begin: str, arguments: Sequence[str], end: str) -> str:
    line = begin + ", ".join(arguments) + end
    if len(line) <= WIDTH and "\n" not in line:
        return line
    return begin + "\n" + "".join(f"    {each},\n" for each in arguments) + end


# --- docstrings ----------------------------------------------------------------------------------

_HEADS = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
}


def _sections(
    found: griffe.Object, *, without: griffe.DocstringSectionKind | None = None
) -> Iterator[str]:
    """Yield a docstring as Markdown."""
    if found.docstring is None:
        return
    for section in found.docstring.parse("google", warnings=False):
        if section.kind is without:
            continue
        if section.kind is griffe.DocstringSectionKind.text:
            yield "\n" + _code_marked(section.value)
        elif section.kind in _HEADS:
            yield f"\n**{_HEADS[section.kind]}**\n"
            for each in section.value:
                named = each.name if hasattr(each, "name") else str(each.annotation)
                yield f"- `{named}`: {' '.join(each.description.split())}"
        elif section.kind is griffe.DocstringSectionKind.returns:
            said = " ".join(each.description for each in section.value).split()
            yield f"\n**Returns** {' '.join(said)}"


def _code_marked(text: str) -> str:
    """Return text whose indented blocks are fenced."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.startswith("    ") and not (lines and lines[-1].strip())
        if starts and not inside:
            lines.append("```python")
            inside = True
        elif inside and line.strip() and not line.startswith("    "):
            while not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            inside = False
        lines.append(line[4:] if inside else line)
    return "\n".join(lines) + ("\n```" if inside else "")


_NAMED = re.compile(r"(?<!\[)`(\w+)(\.\w+)?(\(\))?`(?!\])")


def _linked(text: str, page: str, places: dict[str, str]) -> str:
    """Return a page whose sentences link the public names that they mention."""
    lines, fenced, within = [], False, ""
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## "):
            within = line.removeprefix("## ")
        if fenced or line.startswith(("#", "`from", "```")):
            lines.append(line)
            continue

        def link(match: re.Match[str], within: str = within) -> str:
            name = match[1]
            if name not in places or name in (within, "Answer"):
                return match[0]
            target = places[name].removeprefix(f"{page}.md")
            return f"[{match[0]}]({target})"

        lines.append(_NAMED.sub(link, line))
    return "\n".join(lines)

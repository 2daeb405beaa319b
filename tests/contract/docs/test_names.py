"""What a sentence of the pages names is there: commands, options, files, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pushkit.dashboard.app import dashboard_app
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.outbox.schema import open_outbox
from pushkit.webui.access import DashboardAccess
from receiver.admin import InboxAdmin, open_inbox
from receiver.dashboard.app import inbox_dashboard
from tests.contract.docs.blocks import ROOT
from tests.system.cli.every_command import PUSHKIT, RECEIVER, every_command

PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FILE = re.compile(r"(?:benchmarks|docs|examples|pushkit|receiver|tests)/[\w./-]+")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")
ABRIDGED = re.compile(r"[…|]")
NOT_OURS = {"--help"}
GONE = {"pushkit worker --use-aiohttp", "receiver serve --log-json"}  # as docs/upgrading.md says


def test_commands_in_sentences_exist_with_their_options() -> None:
    known = dict(commands())
    wrong = []
    for path in PAGES:
        for code in CODE.findall(prose(path)):
            said = " ".join(code.split())
            if not said.startswith(("pushkit ", "receiver ")) or said in GONE:
                continue
            called = max((call for call in known if f"{said} ".startswith(f"{call} ")), key=len)
            options = set(OPTION.findall(said)) - NOT_OURS
            is_group = isinstance(known[called], click.Group) and not ABRIDGED.search(said)
            if is_group or not options <= options_of(known[called]):
                wrong.append(f"{name(path)}: {said}")
    assert wrong == []


def test_files_in_sentences_exist() -> None:
    named = [(name(path), code) for path in PAGES for code in CODE.findall(prose(path))]
    files = [(page, code) for page, code in named if FILE.fullmatch(code)]
    assert len(files) > 50
    assert [(page, code) for page, code in files if not (ROOT / code).exists()] == []


def test_links_lead_to_files_and_headings() -> None:
    wrong = []
    for path in PAGES:
        for match in LINK.finditer(prose(path)):
            link = match[1] or match[2]
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists() or (anchor and anchor not in anchors(target)):
                wrong.append(f"{name(path)}: {link}")
    assert wrong == []


def test_the_page_of_the_dashboards_names_what_their_apis_read() -> None:
    access, outbox = DashboardAccess(), open_outbox("outbox.db")
    sender = dashboard_app(OutboxAdmin(outbox), SubscriptionAdmin(outbox), access=access)
    receiver = inbox_dashboard(InboxAdmin(open_inbox("inbox.db")), access=access)
    documents: list[Any] = [each.api.document("") for each in (sender, receiver)]
    read = {path for document in documents for path in document["paths"]}
    page = (ROOT / "docs" / "dashboard.md").read_text()
    said = set(re.findall(r"`(?:/api/v1)?(/[a-z]+)[`?]", page))
    assert {path for path in read if path.count("/") == 1} - said == set()


def commands() -> Iterator[tuple[str, click.Command]]:
    for program, group in (("pushkit", PUSHKIT), ("receiver", RECEIVER)):
        for words, command in every_command(group):
            yield f"{program} {words}".strip(), command


def options_of(command: click.Command) -> set[str]:
    return {each for parameter in command.params for each in parameter.opts}


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = HEADING.findall(prose(path))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))

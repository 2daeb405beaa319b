"""`make accessibility`: axe-core in Chromium over the built site and both dashboards.

    python -m tests.system.release.accessibility node_modules/axe-core/axe.min.js [--site site]

Each page is looked at as wide as a desk's screen and as a phone's, and dashboards in the dark, too.
A finding of axe that is serious or critical, or a page that is wider than the screen, makes the
exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.chromium import CHROMIUM, DESK, PHONE, Tab, browser
from tests.served import served
from tests.verification.soak.dashboards_in_chromium import TOKEN, stage

ROOT = Path(__file__).resolve().parents[3]
SERIOUS = ("serious", "critical")
LOOKS = ((False, False), (False, True), (True, False))  # dark, phone
SITE_LOOKS = LOOKS[:2]  # the dark is its theme's
SENDER_PAGES = (
    *("", "deliveries", "deliveries?state=dead", "subscriptions"),
    *("queues", "destinations", "keys"),
)
RECEIVER_PAGES = (
    *("", "notifications", "notifications?status=dead", "queues", "callbacks"),
    *("refusals", "refusals?code=wrong_audience", "task?task=report-57"),
)
FIRST_LINKS = "[...document.querySelectorAll('td a')].map((each) => each.pathname)"


async def main() -> int:
    """Look at every page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.release.accessibility")
    parser.add_argument("axe", type=Path)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--chromium", default=CHROMIUM)
    asked = parser.parse_args()
    axe = await asyncio.to_thread(asked.axe.read_text, "utf-8")
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with browser(asked.chromium) as tab:
            await tab.call("Page.setBypassCSP", enabled=True)
            async with served(_static(asked.site)) as site:
                pages = sorted(str(page.parent) for page in _pages(asked.site))
                print(f"{len(pages)} pages of the site, and both dashboards", flush=True)
                for page in pages:
                    url = f"{site}/{'' if page == '.' else f'{page}/'}index.html"
                    findings += await _looked_at(tab, axe, url, page, SITE_LOOKS)
            async with stage(Path(folder)) as at:
                for base, known in ((at.sender, SENDER_PAGES), (at.receiver, RECEIVER_PAGES)):
                    findings += await _dashboard(tab, axe, base, known)
    print(f"{len(findings)} findings" if findings else "no serious finding")
    return 1 if findings else 0


def _pages(site: Path) -> list[Path]:
    return [page.relative_to(site) for page in site.rglob("index.html")]


def _static(site: Path) -> web.Application:
    app = web.Application()
    app.router.add_static("/", site)
    return app


async def _dashboard(tab: Tab, axe: str, base: str, known: Sequence[str]) -> list[str]:
    """Look at the login, then at the pages, and at the first page that each list leads to."""
    findings = await _looked_at(tab, axe, f"{base}/login", "login")
    await tab.open(f"{base}/login", "Log in")
    await tab.until("document.activeElement.id === 'token'")
    await tab.type(TOKEN)
    await tab.press("Enter", 13)
    await tab.sees("Actions are allowed")
    ones: dict[str, None] = {}
    for page in known:
        findings += await _looked_at(tab, axe, f"{base}/{page}", page or "overview")
        links = await tab.run(FIRST_LINKS)
        ones |= dict.fromkeys(path for path in links[:1] if path.strip("/") not in known)
    for path in ones:
        findings += await _looked_at(tab, axe, f"{base}{path}", path)
    return findings


async def _looked_at(
    tab: Tab, axe: str, url: str, name: str, looks: Sequence[tuple[bool, bool]] = LOOKS
) -> list[str]:
    findings: list[str] = []
    await tab.call("Page.navigate", url=url)
    await tab.until(f"document.readyState === 'complete' && location.href.startsWith({url[:20]!r})")
    await tab.run(f"{axe}; true")
    for dark, phone in looks:
        await tab.show(dark=dark, phone=phone)
        look = f"{name} ({'dark, ' if dark else ''}{PHONE if phone else DESK} px)"
        for pause in (0.2, 1.0):  # what fades or moves in is looked at once more
            await asyncio.sleep(pause)
            found = await _findings(tab, PHONE if phone else DESK)
            if not found:
                break
        findings += [f"{look}: {each}" for each in found]
    for finding in findings:
        print(finding, flush=True)
    return findings


async def _findings(tab: Tab, width: int) -> list[str]:
    """Return what is wrong with the page as it is shown."""
    wide = int(await tab.run("document.documentElement.scrollWidth"))
    found = await tab.run(
        "axe.run(document, {resultTypes: ['violations']})"
        ".then(({violations}) => violations.map(({id, impact, help, nodes}) =>"
        " ({id, impact, help, where: nodes.slice(0, 3).map((each) => each.html)})))"
    )
    too_wide = [f"the page is {wide} px wide"] if wide > width else []
    return [*too_wide, *(_said(each) for each in found if each["impact"] in SERIOUS)]


def _said(finding: dict[str, Any]) -> str:
    where = "; ".join(" ".join(html.split())[:160] for html in finding["where"])
    return f"{finding['impact']} {finding['id']}: {finding['help']}: {where}"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

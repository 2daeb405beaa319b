"""A dashboard as a browser without JavaScript sees it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from pushkit.webui.site import Site

__all__ = ["BEARER", "TOKEN", "Browser"]

TOKEN = "a-token-of-the-dashboard"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Browser:
    """Follows links and redirects, and keeps cookies."""

    client: TestClient[web.Request, web.Application]

    @classmethod
    async def at(cls, site: Site, aiohttp_client: AiohttpClient) -> Browser:
        """Open a dashboard."""
        # A jar that keeps cookies of an address, as browsers do.
        jar = aiohttp.CookieJar(unsafe=True)
        return cls(await aiohttp_client(site.app(), cookie_jar=jar))

    async def get(self, path: str, status: int = 200) -> str:
        """Return a page."""
        async with self.client.get(path) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def document(self, path: str) -> Any:
        """Return a document of the API."""
        async with self.client.get(f"/api/v1{path}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def submit(self, page: str, button: str, *, status: int = 200, **fields: str) -> str:
        """Press a button of a page; return what it leads to."""
        action, found = _form(page, button)
        origin = str(self.client.make_url("/")).rstrip("/")
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        async with self.client.post(action, data={**found, **fields}, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def log_in(self, token: str = TOKEN) -> str:
        """Log in; return the page that is shown then."""
        return await self.submit(await self.get("/login"), "Log in", token=token)

    def link(self, page: str, text: str) -> str:
        """Return the target of a link."""
        found = re.search(rf'<a[^>]*href="([^"]*)"[^>]*>[^<]*{re.escape(text)}', page)
        assert found, f"there is no link {text!r}"
        return html.unescape(found[1])


def _form(page: str, button: str) -> tuple[str, dict[str, str]]:
    """Return the action and the hidden fields of the form with this button."""
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", page, re.DOTALL):
        pressed = re.search(rf"<button([^>]*)>{re.escape(button)}</button>", form)
        if pressed is None:
            continue
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
        named = re.search(r'name="(\w+)" value="([^"]*)"', pressed[1])
        if named:
            fields[named[1]] = named[2]
        action = re.search(r'formaction="([^"]*)"', pressed[1]) or re.search(
            r'action="([^"]*)"', form
        )
        assert action
        return html.unescape(action[1]), {k: html.unescape(v) for k, v in fields.items()}
    raise AssertionError(f"there is no button {button!r}")

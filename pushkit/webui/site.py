"""The frame of a dashboard: access before every handler, headers after it, templates.

No page loads anything from elsewhere, and none has an inline script or style. Which server has the
requests is of no interest here: `pushkit.webui.aiohttp` and `pushkit.webui.asgi` bring them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.errors import ConfigError, PushkitError
from pushkit.logs import RepeatedLog, printable
from pushkit.webui import formats
from pushkit.webui.access import SESSION_LIFETIME, DashboardAccess
from pushkit.webui.exchange import Answer, PageRequest, ReadForm, Refused, SeeOther, values_of

if TYPE_CHECKING:
    from aiohttp import web

    from pushkit.webui.asgi import AsgiSite


Handler: TypeAlias = Callable[[PageRequest], Awaitable[Answer]]
Action: TypeAlias = Callable[[PageRequest], Awaitable[str]]
Documents: TypeAlias = Callable[[PageRequest], Awaitable[JsonObject]]
Act: TypeAlias = Callable[[list[str]], Awaitable[tuple[JsonObject, str]]]
"""Does something with what has these ids; returns what it came to, and how a page says that."""

_HERE: Final = Path(__file__).parent
_MAX_FORM_BYTES: Final = 64 * 1024
_MAX_LIVE: Final = 32
_MAX_TICKED: Final = 200
_MAX_ID_CHARS: Final = 128
_EVERY: Final = 5.0  # seconds
_LIVE_FOR: Final = 600  # seconds
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "pushkit",
}
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_STATIC_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

_log = logging.getLogger("pushkit.dashboard")
_audit = logging.getLogger("pushkit.dashboard.audit")


class Site:
    """Pages, an API and actions under one access rule.

    The templates of pages extend `frame.html`.
    """

    def __init__(
        self, *, access: DashboardAccess, templates: Path, title: str, clock: Callable[[], datetime]
    ) -> None:
        self.access = access
        self._live = 0
        self._wrong_tokens = RepeatedLog(_log, most=10)
        self._clock = clock
        self._title = title
        # Cookies know no ports: another dashboard of this machine has another one.
        self._cookie = f"{title}_dashboard"
        self._environment = Environment(
            loader=FileSystemLoader([templates, _HERE / "templates"]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= formats.FILTERS
        self._static = {path.name: path.read_bytes() for path in (_HERE / "static").iterdir()}
        everything = b"".join(self._static[name] for name in sorted(self._static))
        self._static_version = hashlib.sha256(everything).hexdigest()[:12]
        self._routes: list[tuple[str, list[str], Handler]] = []
        self._route("GET", "/static/{name}", self._serve_static)
        self._route("GET", "/login", self._show_login)
        self._route("POST", "/login", self._login)
        self._route("POST", "/logout", self._logout)
        self._route("GET", "/live", self._serve_live)

    # --- what is mounted -----------------------------------------------------------------------

    def show(self, path: str, template: str, make: Documents, *, kept: Sequence[str] = ()) -> None:
        """Serve what is found as a page, and as JSON below `/api/v1`; `/` as `/overview`.

        `{name}` in a path is any one segment. What is `kept` of the query is shown by the page's
        form, and goes along to what is older.
        """

        async def page(request: PageRequest) -> Answer:
            found = await make(request)
            if not kept:
                return self._html(request, template, {"found": found})
            asked = {name: request.query.get(name, "") for name in kept}
            older = {**_filled(asked), "before": str(found["before"] or "")}
            is_further = bool(request.query.get("before"))
            context: JsonObject = {
                "query": {**asked},
                "older": urlencode(older),
                "is_further": is_further,
            }
            return self._html(request, template, {"found": found, **context})

        async def document(request: PageRequest) -> Answer:
            return _json(await make(request))

        self._route("GET", path, page)
        self._route("GET", f"/api/v1{'/overview' if path == '/' else path}", document)

    def search(self, found_by: Callable[[str], str]) -> None:
        """Let a field on every page lead to what somebody looks for: a path below the root."""

        async def serve(request: PageRequest) -> Answer:
            raise SeeOther(found_by(request.query.get("q", "").strip()))

        self._route("GET", "/search", serve)

    def describe(self, document: Callable[..., JsonObject]) -> None:
        """Serve what the API is described by, given its path and whether it is `with_actions`."""

        async def serve(request: PageRequest) -> Answer:
            base = f"{request.root}/api/v1"
            return _json(document(base, with_actions=self.access.allow_actions))

        self._route("GET", "/api/openapi.json", serve)

    def actions(self, path: str, name: str, act: Act, *, kept: Sequence[str]) -> None:
        """Let one of what is listed at a path be acted on, or several that were ticked.

        A program may act on one. `kept` is what the list is filtered by.
        """

        async def one(request: PageRequest) -> str:
            _, said = await act([id_of(request)])
            return f"{path}/{quote(id_of(request), safe='')}?{urlencode({'said': said})}"

        async def ticked(request: PageRequest) -> str:
            ids = request.form.get("id", [])[:_MAX_TICKED]
            said = (await act(ids))[1] if ids else "Nothing was selected."
            asked = _filled({name: request.field(name) for name in kept})
            return f"{path}?{urlencode({**asked, 'said': said})}"

        async def by_api(request: PageRequest) -> Answer:
            self._check_actions()
            # A session would do for reading; no browser adds a Bearer token by itself.
            if not self.access.holds_bearer(request.headers.get("authorization")):
                raise Refused(403, "an action of the API needs the Bearer token")
            self._tell(request, name, "asked")
            found, _ = await act([id_of(request)])
            self._tell(request, name, "done")
            return _json(found)

        self.action(f"{path}/{{id}}/{name}", name, one)
        self.action(f"{path}/{name}", name, ticked)
        self._route("POST", f"/api/v1{path}/{{id}}/{name}", by_api)

    def action(self, path: str, name: str, act: Action) -> None:
        """Let a form do something; it then shows the page that `act` returns."""

        async def serve(request: PageRequest) -> Answer:
            self._check_form(request)
            self._tell(request, name, "asked")
            then = await act(request)
            self._tell(request, name, "done")
            raise SeeOther(then)

        self._route("POST", path, serve)

    async def _serve_live(self, request: PageRequest) -> Answer:
        """Tell a page when to look again, by server-sent events."""
        headers = (("Content-Type", "text/event-stream"),)
        if request.method == "HEAD":
            return Answer(headers=headers)
        if self._live >= _MAX_LIVE:
            raise Refused(503, "too many pages are live at once")
        events = self._moments()
        await anext(events)  # from here on it is counted, and ends when it is closed
        return Answer(headers=headers, events=events)

    async def _moments(self) -> AsyncGenerator[bytes, None]:
        self._live += 1
        try:
            yield b""
            # What ends with a session is asked for again, and refused.
            ends = asyncio.get_running_loop().time() + _LIVE_FOR
            while asyncio.get_running_loop().time() < ends:
                await asyncio.sleep(_EVERY)
                yield b"event: changed\ndata:\n\n"
        finally:
            self._live -= 1

    def _route(self, method: str, path: str, handler: Handler) -> None:
        self._routes.append((method, path.split("/"), handler))

    # --- where it is served --------------------------------------------------------------------

    def app(self) -> web.Application:
        """Return it as an aiohttp application, to be run, or mounted by `add_subapp`."""
        from pushkit.webui.aiohttp import application

        return application(self)

    def asgi(self) -> AsgiSite:
        """Return it as an ASGI application, to be run, or mounted in Starlette or FastAPI."""
        from pushkit.webui.asgi import AsgiSite

        return AsgiSite(self)

    # --- around every handler ------------------------------------------------------------------

    async def answer(self, came: Callable[[], PageRequest], read: ReadForm) -> Answer:
        """Answer a request."""
        request = PageRequest(
            method="GET", root="", path="", query={}, headers={}, peer=None, asked=None
        )
        try:
            request = came()
            answer = await self._admitted(request, read)
        except SeeOther as exc:
            answer = Answer(status=303, headers=(("Location", request.root + exc.path),))
        except Refused as exc:
            answer = self._refusal(request, exc)
        except ConfigError as exc:
            answer = self._refusal(request, Refused(400, str(exc)))
        except PushkitError as exc:
            _log.error("dashboard: %s: %s", printable(request.path), exc)
            answer = self._refusal(request, Refused(503, f"{exc.code}: the log says more"))
        except Exception:  # noqa: BLE001  # whatever it is, nothing of it is shown
            _log.exception("dashboard: %s", printable(request.path))
            answer = self._refusal(request, Refused(500, "an error of the dashboard: see its log"))
        return replace(answer, headers=tuple((_HEADERS | dict(answer.headers)).items()))

    async def _admitted(self, request: PageRequest, read: ReadForm) -> Answer:
        if not self.access.knows_host(request.headers.get("host"), request.asked):
            raise Refused(421, "Host names another server: give this name by --host or `hosts`")
        if not request.path.startswith(("/static/", "/login")) and not self._may_read(request):
            self._turn_away(request)
        handler, values = self._find(request)
        request = replace(request, values=values)
        if request.method == "POST":
            body = await read(_MAX_FORM_BYTES)
            if body is None:
                raise Refused(413, f"expected a whole form, of at most {_MAX_FORM_BYTES} bytes")
            request = replace(request, form=values_of(body.decode("utf-8", "replace")))
        return await handler(request)

    def _turn_away(self, request: PageRequest) -> None:
        if request.path.startswith("/api/") or request.method not in _READS:
            challenge = ("WWW-Authenticate", "Bearer")
            raise Refused(401, "expected the token: Authorization: Bearer …", challenge)
        if self.access.token is None:
            raise Refused(403, "without a token, the dashboard is for loopback alone")
        asked = urlencode(request.query)
        then = urlencode({"next": request.path + (f"?{asked}" if asked else "")})
        raise SeeOther(f"/login?{then}")

    def _may_read(self, request: PageRequest) -> bool:
        access = self.access
        return (
            access.may_read_without_token(request.peer, request.headers)
            or access.holds_bearer(request.headers.get("authorization"))
            or access.holds_session(request.cookie(self._cookie), self._clock())
        )

    def _find(self, request: PageRequest) -> tuple[Handler, dict[str, str]]:
        """Return who answers a path, and what stands in it."""
        came = [unquote(part) for part in request.path.split("/")]
        wanted = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for method, parts, handler in self._routes:
            values = _match(parts, came)
            if values is None:
                continue
            if method == wanted:
                return handler, values
            allowed += _READS if method == "GET" else [method]
        if not allowed:
            raise Refused(404, "there is no such page")
        methods = ", ".join(allowed)
        raise Refused(405, f"expected {methods}", ("Allow", methods))

    def _refusal(self, request: PageRequest, refused: Refused) -> Answer:
        status, text = refused.status, str(refused)
        if request.path.startswith("/api/"):
            problem: JsonObject = {"type": "about:blank", "status": status, "detail": text}
            answer = _json(problem, status=status, content_type=_PROBLEM)
        else:
            found: JsonObject = {"status": status, "text": text}
            answer = self._html(request, "refusal.html", found, status=status)
        return replace(answer, headers=(*answer.headers, *refused.headers))

    def _html(
        self, request: PageRequest, template: str, found: Mapping[str, JsonValue], status: int = 200
    ) -> Answer:
        session = request.cookie(self._cookie)
        is_signed_in = self.access.holds_session(session, self._clock())

        def form_token(path: str) -> str:
            return self.access.form_token(session, path)

        text = self._environment.get_template(template).render(
            **found,
            root=request.root,
            title=self._title,
            here=unquote(request.path),
            now=self._clock(),
            form_token=form_token,
            may_act=self.access.allow_actions and is_signed_in,
            is_signed_in=is_signed_in,
            said=request.query.get("said", "")[:200],
            static_version=self._static_version,
        )
        headers = (("Content-Type", "text/html; charset=utf-8"),)
        # What a browser sent may hold what no encoding has.
        return Answer(status=status, headers=headers, body=text.encode("utf-8", "replace"))

    # --- logging in ----------------------------------------------------------------------------

    async def _show_login(self, request: PageRequest) -> Answer:
        return self._html(
            request, "login.html", {"then": _local(request.query.get("next")), "wrong": False}
        )

    async def _login(self, request: PageRequest) -> Answer:
        then = _local(request.field("next"))
        if not self.access.is_same_origin(request.headers):
            raise Refused(403, "the form is not from a page of this dashboard")
        if not self.access.holds_token(request.field("token").strip()):
            said = "dashboard: a wrong token from %s"
            self._wrong_tokens.say(request.peer, logging.WARNING, said, request.peer)
            return self._html(request, "login.html", {"then": then, "wrong": True}, status=403)
        lifetime = int(SESSION_LIFETIME.total_seconds())
        cookie = self._set_cookie(request, self.access.begin_session(self._clock()), lifetime)
        return Answer(status=303, headers=(("Location", request.root + then), cookie))

    async def _logout(self, request: PageRequest) -> Answer:
        if not self.access.is_same_origin(request.headers):
            raise Refused(403, "the form is not from a page of this dashboard")
        cookie = self._set_cookie(request, "", 0)
        return Answer(status=303, headers=(("Location", f"{request.root}/login"), cookie))

    def _set_cookie(self, request: PageRequest, value: str, lifetime: int) -> tuple[str, str]:
        cookie = f"{self._cookie}={value}; Path={request.root or '/'}; Max-Age={lifetime}"
        secure = "; Secure" if request.is_secure else ""
        return ("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Strict{secure}")

    # --- actions -------------------------------------------------------------------------------

    def _check_actions(self) -> None:
        if not self.access.allow_actions:
            raise Refused(403, "the dashboard is read-only: allow actions, and give it a token")

    def _check_form(self, request: PageRequest) -> None:
        self._check_actions()
        if not self.access.is_same_origin(request.headers):
            raise Refused(403, "the form is not from a page of this dashboard")
        session = request.cookie(self._cookie)
        if not self.access.holds_session(session, self._clock()) or not self.access.holds_form(
            session, unquote(request.path), request.field("form_token")
        ):
            raise Refused(403, "the form has expired: load its page again")

    def _tell(self, request: PageRequest, name: str, came_to: str) -> None:
        """Write a line of the audit log: before, so that none is missing, and after."""
        _audit.info("%s %s path=%s from=%s", name, came_to, printable(request.path), request.peer)

    # --- static --------------------------------------------------------------------------------

    async def _serve_static(self, request: PageRequest) -> Answer:
        name = request.values["name"]
        if name not in self._static:
            raise Refused(404, "there is no such file")
        headers = (
            ("Content-Type", _STATIC_TYPES[Path(name).suffix]),
            # Its address has its version in it.
            ("Cache-Control", "public, max-age=31536000, immutable"),
        )
        return Answer(headers=headers, body=self._static[name])


_READS: Final = ("GET", "HEAD")


def _match(parts: list[str], came: list[str]) -> dict[str, str] | None:
    """Return what stands in a path, by the names of a route; None if it is another's."""
    if len(parts) != len(came):
        return None
    values: dict[str, str] = {}
    for part, found in zip(parts, came, strict=True):
        if part.startswith("{") and found:
            values[part.strip("{}")] = found
        elif part != found:
            return None
    return values


def id_of(request: PageRequest) -> str:
    """Return the `{id}` in a path."""
    found = request.values["id"]
    if len(found) > _MAX_ID_CHARS or not found.isprintable():
        raise Refused(404, "there is nothing of this id")
    return found


def _filled(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}


def _local(path: str | None) -> str:
    """Return a path of this dashboard: what a link says is not where a login leads."""
    if not path or not path.startswith("/") or path.startswith("//") or "\\" in path:
        return "/"
    return path if path.isascii() and path.isprintable() else "/"


def _json(found: JsonObject, *, status: int = 200, content_type: str = _JSON) -> Answer:
    headers = (("Content-Type", content_type),)
    return Answer(status=status, headers=headers, body=write_json(found))

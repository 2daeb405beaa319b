"""The frame of a dashboard on aiohttp: access before every handler, headers after it, templates.

aiohttp's server is asked for one thing more than for the webhook: that nobody else sees the answer.
No page loads anything from elsewhere, and none has an inline script or style.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.errors import ConfigError, PushkitError
from pushkit.logs import printable
from pushkit.webui import formats
from pushkit.webui.access import SESSION_LIFETIME, DashboardAccess

__all__ = ["Site"]

Action: TypeAlias = Callable[[web.Request], Awaitable[str]]

_HERE: Final = Path(__file__).parent
_COOKIE: Final = "pushkit_dashboard"
_MAX_FORM_BYTES: Final = 64 * 1024
_MAX_LIVE: Final = 32
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
}
_STATIC_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

_log = logging.getLogger("pushkit.dashboard")
_audit = logging.getLogger("pushkit.dashboard.audit")


class Site:
    """Pages, an API and actions under one access rule.

    Args:
        access: Who may look and act.
        templates: The folder of the pages' templates, which extend `frame.html`.
        title: What the dashboard is called.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        *,
        access: DashboardAccess,
        templates: Path,
        title: str,
        clock: Callable[[], datetime],
    ) -> None:
        self.access = access
        self._live = 0
        self._clock = clock
        self._title = title
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
        self.app: web.Application = web.Application(
            middlewares=[self._guard], client_max_size=_MAX_FORM_BYTES
        )
        self.app.router.add_get("/static/{name}", self._serve_static, name="static")
        self.app.router.add_get("/login", self._show_login, name="login")
        self.app.router.add_post("/login", self._login)
        self.app.router.add_post("/logout", self._logout, name="logout")

    # --- what is mounted -----------------------------------------------------------------------

    def page(
        self, path: str, template: str, make: Callable[[web.Request], Awaitable[JsonObject]]
    ) -> None:
        """Serve a page: a template over a document."""

        async def serve(request: web.Request) -> web.Response:
            found = await make(request)
            return self._html(request, template, found)

        self.app.router.add_get(path, serve, name=template.removesuffix(".html"))

    def document(self, path: str, make: Callable[[web.Request], Awaitable[JsonObject]]) -> None:
        """Serve a document as JSON."""

        async def serve(request: web.Request) -> web.Response:
            return _json(await make(request))

        self.app.router.add_get(path, serve)

    def action(self, path: str, name: str, act: Action) -> None:
        """Let a form do something; it then shows the page that `act` returns."""

        async def serve(request: web.Request) -> web.StreamResponse:
            await self._check_form(request)
            self._tell(request, name, "asked")
            then = await act(request)
            self._tell(request, name, "done")
            raise web.HTTPSeeOther(self.root + then)

        self.app.router.add_post(path, serve)

    def live(self, path: str) -> None:
        """Tell pages when to look again, by server-sent events."""

        async def serve(request: web.Request) -> web.StreamResponse:
            if self._live >= _MAX_LIVE:
                raise web.HTTPServiceUnavailable(text="too many pages are live at once")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_HEADERS})
            self._live += 1
            try:
                await response.prepare(request)
                # What ends with a session is asked for again, and refused.
                ends = asyncio.get_running_loop().time() + _LIVE_FOR
                while asyncio.get_running_loop().time() < ends:
                    await asyncio.sleep(_EVERY)
                    await response.write(b"event: changed\ndata:\n\n")
            except ConnectionError:
                pass
            finally:
                self._live -= 1
            return response

        self.app.router.add_get(path, serve)

    def api_action(
        self, path: str, name: str, act: Callable[[web.Request], Awaitable[JsonObject]]
    ) -> None:
        """Let a program do something."""

        async def serve(request: web.Request) -> web.Response:
            self._check_actions()
            # A session would do for reading; no browser adds a Bearer token by itself.
            if not self.access.holds_bearer(request.headers.get("Authorization")):
                raise web.HTTPForbidden(text="an action of the API needs the Bearer token")
            self._tell(request, name, "asked")
            found = await act(request)
            self._tell(request, name, "done")
            return _json(found)

        self.app.router.add_post(path, serve)

    @staticmethod
    def not_found(text: str) -> web.HTTPNotFound:
        """Return what to raise where there is nothing of that name."""
        return web.HTTPNotFound(text=text)

    @property
    def root(self) -> str:
        """Return the path under which all of this stands, without a slash at its end."""
        return str(self.app.router["login"].url_for()).removesuffix("/login")

    # --- around every handler ------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await self._admitted(request, handler)
        except web.HTTPRedirection as exc:
            exc.headers.update(_HEADERS)
            raise
        except web.HTTPException as exc:
            response = self._refusal(request, exc.status, exc.text or exc.reason)
        except ConfigError as exc:
            response = self._refusal(request, 400, str(exc))
        except PushkitError as exc:
            _log.error("dashboard: %s: %s", printable(request.path), exc)
            response = self._refusal(request, 503, f"{exc.code}: the log says more")
        except Exception:  # noqa: BLE001  # whatever it is, nothing of it is shown
            _log.exception("dashboard: %s", printable(request.path))
            response = self._refusal(request, 500, "an error of the dashboard: see its log")
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        asked = transport.get_extra_info("sockname") if transport else None
        if not self.access.knows_host(request.headers.get("Host"), asked[0] if asked else None):
            raise web.HTTPMisdirectedRequest(
                text="Host names another server: start the dashboard with --host for this name"
            )
        path = request.path.removeprefix(self.root)
        if path.startswith(("/static/", "/login")) or self._may_read(request):
            return await handler(request)
        if path.startswith("/api/") or request.method != "GET":
            raise web.HTTPUnauthorized(
                text="expected the token: Authorization: Bearer …",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self.access.token is None:
            raise web.HTTPForbidden(text="without a token, the dashboard is for loopback alone")
        then = urlencode({"next": request.path_qs.removeprefix(self.root)})
        raise web.HTTPSeeOther(f"{self.root}/login?{then}")

    def _may_read(self, request: web.Request) -> bool:
        access = self.access
        return (
            access.may_read_without_token(request.remote, request.headers)
            or access.holds_bearer(request.headers.get("Authorization"))
            or access.holds_session(request.cookies.get(_COOKIE), self._clock())
        )

    def _refusal(self, request: web.Request, status: int, text: str) -> web.Response:
        path = request.path.removeprefix(self.root)
        if path.startswith("/api/"):
            problem: JsonObject = {"type": "about:blank", "status": status, "detail": text}
            response = _json(problem, status=status, content_type="application/problem+json")
        else:
            response = self._html(
                request, "refusal.html", {"status": status, "text": text}, status=status
            )
        if status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _html(
        self, request: web.Request, template: str, found: Mapping[str, JsonValue], status: int = 200
    ) -> web.Response:
        root = self.root
        session = request.cookies.get(_COOKIE, "")
        is_signed_in = self.access.holds_session(session, self._clock())

        def form_token(path: str) -> str:
            return self.access.form_token(session, f"{root}{path}")

        text = self._environment.get_template(template).render(
            **found,
            root=root,
            title=self._title,
            here=request.path.removeprefix(root),
            now=self._clock(),
            form_token=form_token,
            may_act=self.access.allow_actions and is_signed_in,
            is_signed_in=is_signed_in,
            said=request.query.get("said", "")[:200],
            static_version=self._static_version,
        )
        return web.Response(text=text, content_type="text/html", status=status)

    # --- logging in ----------------------------------------------------------------------------

    async def _show_login(self, request: web.Request) -> web.Response:
        return self._html(
            request, "login.html", {"then": _local(request.query.get("next")), "wrong": False}
        )

    async def _login(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        then = _local(str(form.get("next", "")))
        if not self.access.is_same_origin(request.headers):
            raise web.HTTPForbidden(text="the form is not from a page of this dashboard")
        if not self.access.holds_token(str(form.get("token", "")).strip()):
            _log.warning("dashboard: a wrong token from %s", request.remote)
            return self._html(request, "login.html", {"then": then, "wrong": True}, status=403)
        response = web.HTTPSeeOther(self.root + then)
        response.set_cookie(
            _COOKIE,
            self.access.begin_session(self._clock()),
            path=self.root or "/",
            max_age=int(SESSION_LIFETIME.total_seconds()),
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        raise response

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        if not self.access.is_same_origin(request.headers):
            raise web.HTTPForbidden(text="the form is not from a page of this dashboard")
        response = web.HTTPSeeOther(f"{self.root}/login")
        response.del_cookie(_COOKIE, path=self.root or "/")
        raise response

    # --- actions -------------------------------------------------------------------------------

    def _check_actions(self) -> None:
        if not self.access.allow_actions:
            raise web.HTTPForbidden(
                text="the dashboard is read-only: start it with --allow-actions and a token"
            )

    async def _check_form(self, request: web.Request) -> None:
        self._check_actions()
        if not self.access.is_same_origin(request.headers):
            raise web.HTTPForbidden(text="the form is not from a page of this dashboard")
        session = request.cookies.get(_COOKIE, "")
        form = await request.post()
        token = str(form.get("form_token", ""))
        if not self.access.holds_session(session, self._clock()) or not self.access.holds_form(
            session, request.path, token
        ):
            raise web.HTTPForbidden(text="the form has expired: load its page again")

    def _tell(self, request: web.Request, name: str, came_to: str) -> None:
        """Write a line of the audit log: before, so that none is missing, and after."""
        _audit.info("%s %s path=%s from=%s", name, came_to, printable(request.path), request.remote)

    # --- static --------------------------------------------------------------------------------

    async def _serve_static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound(text="there is no such file")
        response = web.Response(
            body=self._static[name], content_type=_STATIC_TYPES[Path(name).suffix]
        )
        # Its address has its version in it.
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def _local(path: str | None) -> str:
    """Return a path of this dashboard: what a link says is not where a login leads."""
    if not path or not path.startswith("/") or path.startswith("//") or "\\" in path:
        return "/"
    return path if path.isprintable() else "/"


def _json(
    found: JsonObject, *, status: int = 200, content_type: str = "application/json"
) -> web.Response:
    return web.Response(body=write_json(found), content_type=content_type, status=status)

"""The frame of a dashboard: access checks before every handler, headers after it, templates.

No page loads anything from another origin, and none has an inline script or style. A site is an
ASGI application; `pushkit.webui.aiohttp` passes aiohttp's requests to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)
from urllib.parse import parse_qsl, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, PushkitError
from pushkit.logs import RepeatedLog, one_word, printable
from pushkit.storage.location import with_database
from pushkit.webui.access import SESSION_LIFETIME, DashboardAccess
from pushkit.webui.api import Api, Document, Parameter, Problem, json_of
from pushkit.webui.asgi import (
    Message,
    PageAnswer,
    PageRefused,
    PageRequest,
    Receive,
    Send,
    read_body,
    refuse_websocket,
    values_of,
)
from pushkit.webui.parts import FILTERS

if TYPE_CHECKING:
    from aiohttp import web


class Link(NamedTuple):
    """A page in the navigation."""

    path: str  # may have a query
    label: str
    others: tuple[str, ...] = ()  # paths of further pages that belong to it


class HasIds(Protocol):
    """The result of a change, as a document."""

    @property
    def ids(self) -> Sequence[object]:
        """What was changed."""


class FormResult(NamedTuple):
    """The result of a change by a form."""

    ids: Sequence[object]  # what was changed
    said: str  # the same in a sentence
    path: str  # the page that shows it
    query: Mapping[str, str] = MappingProxyType({})


T = TypeVar("T")

Handler: TypeAlias = Callable[[PageRequest], Awaitable[PageAnswer]]
Read: TypeAlias = Callable[[PageRequest], Awaitable[Document]]
"""Returns a document; the annotation of what it returns describes that in the API."""
Filters: TypeAlias = Sequence[Parameter[Any]]
Change: TypeAlias = Callable[[PageRequest], Awaitable[FormResult]]
Act: TypeAlias = Callable[[list[T]], Awaitable[tuple[HasIds, str]]]
"""Changes the items of these ids; returns the result as a document, and as a sentence."""

_HERE: Final = Path(__file__).parent
_MAX_FORM_BYTES: Final = 64 * 1024
_MAX_LIVE: Final = 32
_MAX_TICKED: Final = 200
_AUDITED: Final = 10  # the most ids in a line of the audit log
_AUDITED_CHARS: Final = 500  # the longest filter there
_LIVE_INTERVAL: Final = 4.0  # seconds
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers would send `Origin: null` with this dashboard's own forms.
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

    The templates of pages extend `frame.html`. Their filter `with_database` makes commands for the
    database that is shown.
    """

    def __init__(
        self,
        *,
        access: DashboardAccess,
        templates: Path,
        title: str,
        database: str,
        links: Sequence[Link],
        search: tuple[str, str],  # what can be found: in short, and in a sentence
        found_by: Callable[[str], str],  # returns the path for a text in the search field
    ) -> None:
        self.access = access
        self._live = 0
        self._wrong_tokens = RepeatedLog(_log, most=10)
        # Cookies are shared by all ports of a host: each kind, and each token, has its own name.
        self._cookie = f"{title}_dashboard_{access.token_mark()}"
        self._environment = Environment(
            loader=FileSystemLoader([templates, _HERE / "templates"]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= FILTERS
        self._environment.filters["with_database"] = lambda command: with_database(
            command, database
        )
        self._environment.globals.update(links=links, search=search, title=title)
        self._links = links
        self.api = Api(title)
        self._static = {path.name: path.read_bytes() for path in (_HERE / "static").iterdir()}
        everything = b"".join(self._static[name] for name in sorted(self._static))
        self._static_version = hashlib.sha256(everything).hexdigest()[:12]
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []
        self._route("GET", "/static/{name}", self._serve_static)
        self._route("GET", "/login", self._show_login)
        self._route("POST", "/login", self._login)
        self._route("POST", "/logout", self._logout)
        self._route("GET", "/live", self._serve_live)

        async def describe(request: PageRequest) -> PageAnswer:
            return _json(self.api.document(f"{request.root}/api/v1"))

        async def find(request: PageRequest) -> PageAnswer:
            return _see_other(request, found_by(request.query.get("q", "").strip()))

        self._route("GET", "/api/openapi.json", describe)
        self._route("GET", "/search", find)

    # --- routes --------------------------------------------------------------------------------

    def show(self, path: str, template: str, read: Read, *parameters: Parameter[Any]) -> None:
        """Serve a document as a page, and as JSON below `/api/v1` (`/` as `/overview`).

        `{id}` in a path matches any one segment. The values of filters are shown in the page's
        form, and kept in the link to older items.
        """
        filters = [each.name for each in parameters if each.member]

        async def page(request: PageRequest) -> PageAnswer:
            found: Any = json_of(await read(request))
            context: JsonObject = {"found": found}
            if filters:
                query = {name: request.query.get(name, "") for name in filters}
                older = {**_filled(query), "before": str(found.get("before") or "")}
                context |= {
                    "query": {**query},
                    "older": urlencode(older),
                    "is_further": bool(request.query.get("before")),
                }
            return self._html(request, template, context)

        async def document(request: PageRequest) -> PageAnswer:
            return _json(json_of(await read(request)))

        in_api = "/overview" if path == "/" else path
        self._route("GET", path, page)
        self._route("GET", f"/api/v1{in_api}", document)
        self.api.add("GET", in_api, read.__doc__ or "", parameters, _returned(read))

    def changes(
        self, path: str, name: str, act: Act[T], of: Parameter[T], filters: Filters
    ) -> None:
        """Serve a change of one item of the list at a path, of several ticked ones, and by API.

        `of` is the id of an item, and `filters` are the parameters of the list. A dashboard that
        allows no actions has none of these routes.
        """
        if not self.access.allow_actions:
            return

        async def one(request: PageRequest) -> FormResult:
            found, said = await act([of.of(request.values)])
            return FormResult(found.ids, said, request.path.removesuffix(f"/{name}"))

        async def ticked(request: PageRequest) -> FormResult:
            ids = [of.of({"id": each}) for each in request.form.get("id", [])[:_MAX_TICKED]]
            query = fields_of(request, filters)
            if not ids:
                return FormResult((), "Nothing was selected.", path, query)
            found, said = await act(ids)
            return FormResult(found.ids, said, path, query)

        async def by_api(request: PageRequest) -> PageAnswer:
            # A session is not enough: browsers send it by themselves, a Bearer token never.
            if not self.access.holds_bearer(request.headers.get("authorization")):
                raise PageRefused(403, "an action of the API needs the Bearer token")
            self._audit(request, name, "asked")
            found, _ = await act([of.of(request.values)])
            self._audit(request, name, "done", ids=found.ids)
            return _json(json_of(found))

        self.change(f"{path}/{{id}}/{name}", name, one)
        self.change(f"{path}/{name}", name, ticked, filters)
        self._route("POST", f"/api/v1{path}/{{id}}/{name}", by_api)
        [answer, _] = get_args(_returned(act))
        self.api.add("POST", f"{path}/{{id}}/{name}", act.__doc__ or "", [of], answer)

    def change(self, path: str, name: str, act: Change, filters: Filters = ()) -> None:
        """Serve a change by a form, and redirect to the page that shows its result.

        `filters` are the parameters that the form may have. A dashboard that allows no actions does
        not have the route.
        """
        if not self.access.allow_actions:
            return

        async def serve(request: PageRequest) -> PageAnswer:
            self._check_form(request)
            wanted = fields_of(request, filters)
            self._audit(request, name, "asked", wanted, request.form.get("id", [])[:_MAX_TICKED])
            changed = await act(request)
            self._audit(request, name, "done", wanted, changed.ids)
            query = urlencode({**changed.query, "said": changed.said})
            return _see_other(request, f"{changed.path}?{query}")

        self._route("POST", path, serve)

    def _current(self, request: PageRequest) -> str:
        """Return the link that leads to a page: of several, the one that says most of its query."""
        found = [
            link.path
            for link in self._links
            if any(
                request.path == each or (each != "/" and request.path.startswith(f"{each}/"))
                for each in (link.path.partition("?")[0], *link.others)
            )
            and {*parse_qsl(link.path.partition("?")[2])} <= {*request.query.items()}
        ]
        return max(found, key=len, default="")

    async def _serve_live(self, request: PageRequest) -> PageAnswer:
        """Tell a page when to refresh, by server-sent events."""
        headers = (("Content-Type", "text/event-stream"),)
        if request.method == "HEAD":
            return PageAnswer(headers=headers)
        if self._live >= _MAX_LIVE:
            raise PageRefused(503, "too many pages are live at once")
        events = self._moment()
        await anext(events)  # counts it: from now on, closing the generator runs its `finally`
        return PageAnswer(headers=headers, events=events)

    async def _moment(self) -> AsyncGenerator[bytes, None]:
        self._live += 1
        try:
            yield b""
            await asyncio.sleep(_LIVE_INTERVAL)
            # The stream then ends, and the browser reconnects: a server that stops waits for its
            # connections, and many tell nobody that they stop.
            yield b"event: changed\nretry: 1000\ndata:\n\n"
        finally:
            self._live -= 1

    def _route(self, method: str, path: str, handler: Handler) -> None:
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
        self._routes.append((method, re.compile(pattern), handler))

    # --- as an application ---------------------------------------------------------------------

    def app(self) -> web.Application:
        """Return the site as an aiohttp application, to run, or to mount by `add_subapp`."""
        from pushkit.webui.aiohttp import application

        return application(self)

    def asgi(self) -> Site:
        """Return the site as an ASGI application, to run, or to mount in Starlette or FastAPI."""
        return self

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request; acknowledge a server's lifespan events, for which nothing is done."""
        if scope["type"] == "lifespan":
            for done in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{done}.complete"})
        elif scope["type"] == "websocket":
            await refuse_websocket(receive, send)
        elif scope["type"] == "http":
            answer = await self._answer(PageRequest.of(scope), receive)
            await answer.send(receive, send)

    # --- around every handler ------------------------------------------------------------------

    async def _answer(self, request: PageRequest, receive: Receive) -> PageAnswer:
        try:
            query = {name: values[0] for name, values in values_of(request.query_string).items()}
            request = replace(request, query=query)
            answer = await self._handle(request, receive)
        except PageRefused as exc:
            answer = self._refusal(request, exc)
        except ConfigError as exc:
            answer = self._refusal(request, PageRefused(400, str(exc)))
        except PushkitError as exc:
            _log.error("dashboard: %s: %s", printable(request.path), exc)
            answer = self._refusal(
                request, PageRefused(503, f"{exc.code}: see the dashboard's log")
            )
        except Exception:  # noqa: BLE001  # no detail of an unexpected error is shown
            _log.exception("dashboard: %s", printable(request.path))
            answer = self._refusal(request, PageRefused(500, "the dashboard failed: see its log"))
        return replace(answer, headers=tuple((_HEADERS | dict(answer.headers)).items()))

    async def _handle(self, request: PageRequest, receive: Receive) -> PageAnswer:
        if not self.access.knows_host(request.headers.get("host"), request.local_address):
            raise PageRefused(421, "Host names another server: give this name by --host or `hosts`")
        if not request.path.startswith(("/static/", "/login")) and not self._may_read(request):
            return self._login_first(request)
        handler, values = self._find(request)
        request = replace(request, values=values)
        if request.method == "POST":
            body = await read_body(receive, _MAX_FORM_BYTES)
            if body is None:
                raise PageRefused(413, f"expected a whole form, of at most {_MAX_FORM_BYTES} bytes")
            request = replace(request, form=values_of(body.decode("utf-8", "replace")))
        return await handler(request)

    def _login_first(self, request: PageRequest) -> PageAnswer:
        if request.path.startswith("/api/") or request.method not in (*_READS, "POST"):
            challenge = ("WWW-Authenticate", "Bearer")
            raise PageRefused(401, "expected the token: Authorization: Bearer …", challenge)
        if self.access.token is None:
            raise PageRefused(403, "without a token, the dashboard answers loopback clients only")
        path, query = request.path, urlencode(request.query)
        if request.method == "POST":  # a form of the page one level up, whose session is over
            path = path.rpartition("/")[0] or "/"
        then = urlencode({"next": path + (f"?{query}" if query else "")})
        return _see_other(request, f"/login?{then}")

    def _may_read(self, request: PageRequest) -> bool:
        access = self.access
        return (
            access.may_read_without_token(request.peer, request.headers)
            or access.holds_bearer(request.headers.get("authorization"))
            or access.holds_session(request.cookie(self._cookie), utc_now())
        )

    def _find(self, request: PageRequest) -> tuple[Handler, dict[str, str]]:
        """Return the handler of a path, and the values of the path's parameters."""
        wanted = "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for method, pattern, handler in self._routes:
            found = pattern.fullmatch(request.path)
            if found is None:
                continue
            if method == wanted:
                return handler, {name: unquote(value) for name, value in found.groupdict().items()}
            allowed += _READS if method == "GET" else [method]
        if not allowed:
            raise PageRefused(404, "there is no such page")
        methods = ", ".join(allowed)
        raise PageRefused(405, f"expected {methods}", ("Allow", methods))

    def _refusal(self, request: PageRequest, refused: PageRefused) -> PageAnswer:
        status, text = refused.status, str(refused)
        if request.path.startswith("/api/"):
            problem = Problem(status=status, detail=text)
            answer = _json(json_of(problem), status=status, content_type=_PROBLEM)
        else:
            found: JsonObject = {"status": status, "text": text}
            answer = self._html(request, "refusal.html", found, status=status)
        return replace(answer, headers=(*answer.headers, *refused.headers))

    def _html(
        self, request: PageRequest, template: str, found: Mapping[str, JsonValue], status: int = 200
    ) -> PageAnswer:
        session = request.cookie(self._cookie)
        is_signed_in = self.access.holds_session(session, utc_now())

        def form_token(path: str) -> str:
            return self.access.form_token(session, path)

        text = self._environment.get_template(template).render(
            **found,
            root=request.root,
            current=self._current(request),
            here=unquote(request.path),
            now=utc_now(),
            form_token=form_token,
            may_act=self.access.allow_actions and is_signed_in,
            is_signed_in=is_signed_in,
            said=request.query.get("said", "")[:200],
            static_version=self._static_version,
        )
        headers = (("Content-Type", "text/html; charset=utf-8"),)
        # A browser may have sent lone surrogates, which UTF-8 cannot encode.
        return PageAnswer(status=status, headers=headers, body=text.encode("utf-8", "replace"))

    # --- logging in ----------------------------------------------------------------------------

    async def _show_login(self, request: PageRequest) -> PageAnswer:
        return self._html(
            request, "login.html", {"then": _local(request.query.get("next")), "wrong": False}
        )

    async def _login(self, request: PageRequest) -> PageAnswer:
        then = _local(request.field("next"))
        self._check_origin(request)
        if not self.access.holds_token(request.field("token").strip()):
            said = "dashboard: wrong token from %s"
            self._wrong_tokens.log(request.peer, logging.WARNING, said, one_word(request.peer))
            return self._html(request, "login.html", {"then": then, "wrong": True}, status=403)
        lifetime = int(SESSION_LIFETIME.total_seconds())
        cookie = self._set_cookie(request, self.access.begin_session(utc_now()), lifetime)
        return _see_other(request, then, cookie)

    async def _logout(self, request: PageRequest) -> PageAnswer:
        self._check_origin(request)
        cookie = self._set_cookie(request, "", 0)
        return _see_other(request, "/login", cookie)

    def _set_cookie(self, request: PageRequest, value: str, lifetime: int) -> tuple[str, str]:
        cookie = f"{self._cookie}={value}; Path={request.root or '/'}; Max-Age={lifetime}"
        # A proxy may terminate TLS: the browser states in `Origin` how it came.
        over_tls = request.is_secure or request.headers.get("origin", "").startswith("https://")
        secure = "; Secure" if over_tls else ""
        return ("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Strict{secure}")

    # --- actions -------------------------------------------------------------------------------

    def _check_origin(self, request: PageRequest) -> None:
        if not self.access.is_same_origin(request.headers):
            origin, host = request.headers.get("origin", "no page"), request.headers.get("host")
            raise PageRefused(
                403,
                f"the form is from {origin}, and Host is {host}: expected a page of this dashboard,"
                " and that a proxy passes on Host, with its port",
            )

    def _check_form(self, request: PageRequest) -> None:
        self._check_origin(request)
        session = request.cookie(self._cookie)
        if not self.access.holds_session(session, utc_now()) or not self.access.holds_form(
            session, unquote(request.path), request.field("form_token")
        ):
            raise PageRefused(403, "the form has expired: load its page again")

    def _audit(
        self,
        request: PageRequest,
        name: str,
        stage: str,
        wanted: Mapping[str, str] = MappingProxyType({}),
        ids: Sequence[object] = (),
    ) -> None:
        """Write a line of the audit log, at the stage `asked` (so none is missing) or `done`.

        It has the filter, and the ids that were ticked, or changed in the end: the first ones, and
        how many there are.
        """
        line = f"{name} {stage} path={printable(request.path)}"
        if wanted:
            line += f" filter={urlencode(wanted)[:_AUDITED_CHARS]}"
        if ids or stage == "done":
            line += f" count={len(ids)}"
        if ids:
            more = ",…" if len(ids) > _AUDITED else ""
            line += f" ids={','.join(one_word(str(each)) for each in ids[:_AUDITED])}{more}"
        # A warning, so that it is also logged where an application leaves the levels as they are.
        _audit.warning("%s from=%s", line, one_word(request.peer))

    # --- static --------------------------------------------------------------------------------

    async def _serve_static(self, request: PageRequest) -> PageAnswer:
        name = request.values["name"]
        if name not in self._static:
            raise PageRefused(404, "there is no such file")
        headers = (
            ("Content-Type", _STATIC_TYPES[Path(name).suffix]),
            # The pages' links to it contain its version.
            ("Cache-Control", "public, max-age=31536000, immutable"),
        )
        return PageAnswer(headers=headers, body=self._static[name])


_READS: Final = ("GET", "HEAD")


def fields_of(request: PageRequest, filters: Filters) -> dict[str, str]:
    """Return the values of filters in a form, without empty ones."""
    return _filled({each.name: request.field(each.name) for each in filters if each.member})


def _returned(function: Callable[..., object]) -> object:
    """Return the type that a coroutine function returns."""
    return get_type_hints(function, include_extras=True)["return"]


def _filled(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}


def _local(path: str | None) -> str:
    """Return a path of this dashboard: a login never redirects to another site (open redirect)."""
    if not path or not path.startswith("/") or path.startswith("//") or "\\" in path:
        return "/"
    return path if path.isascii() and path.isprintable() else "/"


def _see_other(request: PageRequest, path: str, *headers: tuple[str, str]) -> PageAnswer:
    """Redirect to another page: a path below the dashboard's root."""
    return PageAnswer(status=303, headers=(("Location", request.root + path), *headers))


def _json(found: JsonValue, *, status: int = 200, content_type: str = _JSON) -> PageAnswer:
    headers = (("Content-Type", content_type),)
    return PageAnswer(status=status, headers=headers, body=write_json(found))

"""Access to the dashboard: who may read, and who may act."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from pushkit.clock import utc_now
from pushkit.errors import ConfigError, KeyFileError
from pushkit.terminal.options import DashboardOptions
from pushkit.webui.access import DashboardAccess, is_loopback
from pushkit.webui.asgi import joined_fields
from pushkit.webui.serving import access_of, audit_to
from tests.browser import BEARER, TOKEN, Browser
from tests.unit.pushkit.dashboard.conftest import House, Open

ACTING = DashboardAccess(token=TOKEN, allow_actions=True)
FORM_TOKEN = r'name="form_token" value="(\w+)"'


@pytest.mark.parametrize(
    ("host", "asked", "known"),
    [
        ("127.0.0.1:8090", "127.0.0.1", True),
        ("localhost:9999", "127.0.0.1", True),
        ("LOCALHOST", "::1", True),
        ("[::1]:8090", "::1", True),
        ("dashboard.example.com", "10.0.0.7", True),
        ("10.0.0.7:8090", "10.0.0.7", True),
        ("localhost", "10.0.0.7", False),
        ("evil.example.com", "127.0.0.1", False),
        ("127.0.0.1.evil.example.com", "127.0.0.1", False),
        ("127.0.0.1@evil.example.com", "127.0.0.1", False),
        ("10.0.0.8", "10.0.0.7", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
        ("localhost:80:80", "127.0.0.1", False),
    ],
)
def test_a_host_is_the_address_that_was_asked_or_a_name_that_was_given(
    host: str | None, asked: str, known: bool
) -> None:
    access = DashboardAccess(hosts=["Dashboard.example.com"])
    assert access.knows_host(host, asked) is known


@pytest.mark.parametrize(
    "hosts", ["ops.example.com", ["ops.example.com:8443"], ["https://ops.example.com"], ["[::1]"]]
)
def test_hosts_that_no_request_can_name_are_refused(hosts: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="hosts: "):
        DashboardAccess(hosts=hosts)


@pytest.mark.parametrize("host", ["fd00::1", "10.0.0.7", "ops_1.example.com"])
def test_a_host_may_be_an_address(host: str) -> None:
    named = f"[{host}]:8443" if ":" in host else f"{host}:8443"
    assert DashboardAccess(hosts=[host]).knows_host(named, "192.0.2.1")


async def test_another_host_is_refused_before_anything_is_read(reader: Browser) -> None:
    async with reader.client.get("/", headers={"Host": "evil.example.com"}) as answer:
        assert answer.status == 421
        assert "Read-only." not in await answer.text()  # it says nothing about the dashboard


@pytest.mark.parametrize(
    "headers", [{"X-Forwarded-For": "192.0.2.1"}, {"Via": "1.1 proxy"}, {"Forwarded": "for=_x"}]
)
async def test_without_a_token_nobody_reads_through_a_proxy(
    reader: Browser, headers: dict[str, str]
) -> None:
    async with reader.client.get("/", headers=headers) as answer:
        assert answer.status == 403


def test_loopback_and_nothing_else_is_known_however_it_is_written() -> None:
    loopback = ("127.0.0.1", "::1", "127.8.9.1", "::ffff:127.0.0.1")
    others = ("10.0.0.1", "", None, "::", "0.0.0.1", "localhost")
    assert [each for each in (*loopback, *others) if is_loopback(each)] == [*loopback]


@pytest.mark.parametrize("token", ["short", "with a blank in its middle", "ümläüte-are-not-ascii"])
def test_a_token_that_is_weak_is_refused_without_its_text(token: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DashboardAccess(token=token)
    assert token not in str(refused.value)


def test_the_command_that_a_missing_token_file_names_makes_one_that_is_accepted(
    tmp_path: Path,
) -> None:
    options = DashboardOptions(
        listen="127.0.0.1:0", variable="NO_SUCH_VARIABLE", token_file=tmp_path / "token"
    )
    with pytest.raises(KeyFileError) as refused:
        access_of(options)
    command = str(refused.value).split("`")[1]
    subprocess.run(["/bin/sh", "-c", f"umask 022; {command}"], check=True)  # noqa: S603
    assert access_of(options).token is not None


def test_actions_without_a_token_are_refused() -> None:
    with pytest.raises(ConfigError, match="actions need a token"):
        DashboardAccess(allow_actions=True)


async def test_with_a_token_everything_needs_it(guest: Browser) -> None:
    for path in ("/", "/deliveries", "/keys", "/live"):
        page = await guest.get(path)
        assert "<h1>Log in</h1>" in page
        assert "Read-only." not in page
    async with guest.client.get("/api/v1/overview") as answer:
        assert answer.status == 401
        assert answer.content_type == "application/problem+json"


async def test_the_token_is_taken_as_a_bearer_token(guest: Browser) -> None:
    for authorization, status in ((f"Bearer {TOKEN}", 200), ("Bearer wrong", 401), (TOKEN, 401)):
        headers = {"Authorization": authorization}
        async with guest.client.get("/api/v1/keys", headers=headers) as answer:
            assert answer.status == status


async def test_a_login_leads_to_the_page_that_was_asked_for(guest: Browser) -> None:
    page = await guest.get("/deliveries?state=dead")
    assert "<h1>Dead letters</h1>" in await guest.submit(page, "Log in", token=TOKEN)
    assert "Read-only." in await guest.get("/")


@pytest.mark.parametrize("then", ["https://evil.example.com/", "//evil.example.com", "/\\evil"])
async def test_a_login_redirects_only_within_the_dashboard(guest: Browser, then: str) -> None:
    async with guest.client.get("/login", params={"next": then}) as answer:
        page = await answer.text()
    assert 'name="next" value="/"' in page


async def test_a_wrong_token_is_reported_and_logged_without_its_text(
    guest: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    page = await guest.get("/login")
    for _ in range(3):
        assert "This token is wrong." in await guest.submit(
            page, "Log in", status=403, token="guessed-by-a-stranger"
        )
    assert caplog.messages.count("dashboard: wrong token from 127.0.0.1") == 1
    assert "guessed" not in caplog.text


async def test_a_form_that_cannot_be_read_is_refused_without_a_line(
    guest: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with guest.client.post("/login", data=b"canary", headers=headers) as answer:
        assert answer.status == 413
        assert "expected a whole form" in await answer.text()
    assert "pushkit.dashboard" not in {record.name for record in caplog.records}


async def test_a_cookie_is_of_no_use_to_scripts_and_other_sites(guest: Browser) -> None:
    origin = str(guest.client.make_url("/")).rstrip("/")
    async with guest.client.post(
        "/login", data={"token": TOKEN}, headers={"Origin": origin}, allow_redirects=False
    ) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert "Secure" not in cookie  # a browser that came by http would drop it


async def test_behind_a_proxy_with_tls_the_cookie_is_sent_over_tls_alone(
    open_dashboard: Open,
) -> None:
    browser = await open_dashboard(DashboardAccess(token=TOKEN, hosts=["ops.example.com"]))
    headers = {"Host": "ops.example.com", "Origin": "https://ops.example.com"}
    async with browser.client.post(
        "/login", data={"token": TOKEN}, headers=headers, allow_redirects=False
    ) as answer:
        assert "; Secure" in answer.headers["Set-Cookie"]


def test_a_session_ends() -> None:
    now = utc_now()
    session = ACTING.begin_session(now)
    assert ACTING.holds_session(session, now + timedelta(hours=11))
    assert not ACTING.holds_session(session, now + timedelta(hours=13))


@pytest.mark.parametrize(
    ("token", "change"),
    [
        pytest.param(TOKEN, lambda s: s[1:], id="cut"),
        pytest.param(TOKEN, lambda s: f"9{s}", id="for longer"),
        pytest.param(TOKEN, lambda _: "", id="empty"),
        pytest.param(TOKEN, lambda _: "a.b.c", id="made up"),
        pytest.param(TOKEN, lambda _: "\udcff.\udcff.", id="other bytes"),
        pytest.param(f"{TOKEN}-another", lambda s: s, id="of another token"),
    ],
)
def test_any_other_cookie_is_no_session(token: str, change: Callable[[str], str]) -> None:
    access = DashboardAccess(token=token)
    assert not access.holds_session(change(ACTING.begin_session(utc_now())), utc_now())


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"Origin": "http://127.0.0.1:8090", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://127.0.0.1:8090"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:9000"}, False),
        ({"Origin": "http://evil.example.com"}, False),
        ({"Origin": "http://127.0.0.1:8090", "Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_a_form_is_of_our_own_pages(headers: dict[str, str], same: bool) -> None:
    fields = joined_fields({"Host": "127.0.0.1:8090", **headers}.items())
    assert DashboardAccess.is_same_origin(fields) is same


async def test_no_page_allows_a_script_or_style_of_another_origin_or_a_frame(
    house: House, reader: Browser
) -> None:
    delivery = f"/deliveries/{await house.dead_letter()}"
    for path in ("/", "/login", "/deliveries", delivery, "/nothing", "/api/v1/keys"):
        async with reader.client.get(path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert "http" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            page = await answer.text()
        assert not re.search(r"<script(?![^>]*src=\"/static/)|<style|\sstyle=|\son\w+=", page)
        assert not re.search(r"(src|href)=\"(https?:)?//", page)


# --- actions -----------------------------------------------------------------------------------


async def test_a_failed_delivery_is_redriven_and_delivered(
    house: House, operator: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    delivery_id = await house.dead_letter("report-7")
    page = await operator.get("/")
    page = await operator.get(operator.link(page, "1 dead letter within"))
    page = await operator.get(operator.link(page, "report-7"))
    assert "Why it is dead" in page
    house.statuses["/strict"] = 202
    page = await operator.submit(page, "Redrive")
    assert "1 redriven." in page
    assert '<span class="state pending">pending</span>' in page
    await house.deliver()
    page = await operator.get(f"/deliveries/{delivery_id}")
    assert '<span class="state delivered">delivered</span>' in page
    assert "Redriven" in page
    assert "Attempt 2" in page
    lines = [r.getMessage() for r in caplog.records if r.name == "pushkit.dashboard.audit"]
    path = f"path=/deliveries/{delivery_id}/redrive"
    assert lines == [
        f"redrive asked {path} from=127.0.0.1",
        f"redrive done {path} count=1 ids={delivery_id} from=127.0.0.1",
    ]


def test_an_audit_log_that_was_rotated_away_is_begun_anew(tmp_path: Path) -> None:
    audit, file = logging.getLogger("pushkit.dashboard.audit"), tmp_path / "audit.log"
    audit_to(file)
    [handler] = audit.handlers
    try:
        audit.warning("the first")
        file.rename(tmp_path / "audit.log.1")
        audit.warning("the second")
        assert file.read_text("utf-8").endswith("pushkit.dashboard.audit: the second\n")
    finally:
        audit.removeHandler(handler)
        audit.propagate = True
        handler.close()


async def test_the_audit_log_says_what_a_bulk_action_changed(
    house: House, operator: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [await house.dead_letter(f"task-{n:02}") for n in range(12)]
    page = await operator.get("/deliveries?state=dead&error=rejected")
    await operator.submit(page, "Redrive", id=ids[0])
    page = await operator.get("/deliveries?state=dead&error=rejected")
    await operator.submit(page, "Redrive them all")

    lines = [r.getMessage() for r in caplog.records if r.name == "pushkit.dashboard.audit"]
    how = "filter=state=dead&error=rejected"
    assert lines[0] == (
        f"redrive asked path=/deliveries/redrive {how} count=1 ids={ids[0]} from=127.0.0.1"
    )
    assert lines[1] == lines[0].replace("asked", "done")
    assert lines[2] == (f"redrive-all asked path=/deliveries/redrive-all {how} from=127.0.0.1")
    found = re.fullmatch(
        rf"redrive-all done path=/deliveries/redrive-all {how} count=11 ids=(\S+),… from=127.0.0.1",
        lines[3],
    )
    assert found
    assert len(set(found[1].split(",")) & set(ids[1:])) == 10


async def test_dead_letters_are_redriven_by_box_by_filter_and_all_together(
    house: House, operator: Browser
) -> None:
    ids = [await house.dead_letter(f"task-{n}") for n in range(4)]

    async def states() -> list[str]:
        return [await house.state(each) for each in ids]

    page = await operator.get("/deliveries?state=dead")
    assert "1 redriven." in await operator.submit(page, "Redrive", id=ids[1])
    assert await states() == ["dead", "pending", "dead", "dead"]
    page = await operator.get("/deliveries?state=dead&task=task-2")
    assert "1 redriven." in await operator.submit(page, "Redrive them all")
    assert await states() == ["dead", "pending", "pending", "dead"]
    await operator.submit(await operator.get("/deliveries?state=dead"), "Redrive them all")
    assert await states() == ["pending"] * 4


async def test_an_operator_retries_cancels_and_resends_deliveries(
    house: House, operator: Browser
) -> None:
    house.statuses["/broken"] = 500
    first, second = await house.notify("task-1", "/broken"), await house.notify("task-2", "/broken")
    await house.deliver()
    house.statuses["/broken"] = 202
    assert "1 tried now." in await operator.submit(
        await operator.get(f"/deliveries/{first}"), "Try now"
    )
    assert "1 cancelled." in await operator.submit(
        await operator.get(f"/deliveries/{second}"), "Cancel"
    )
    await house.deliver()
    assert [await house.state(each) for each in (first, second)] == ["delivered", "cancelled"]
    page = await operator.get(f"/deliveries/{second}")
    assert "1 sent again." in await operator.submit(page, "Send again")


async def test_a_subscription_is_paused_resumed_disabled_and_enabled(
    house: House, operator: Browser
) -> None:
    delivery_id = await house.notify("task-1")
    page = await operator.get(f"/deliveries/{delivery_id}")
    page = await operator.get(operator.link(page, "sub_"))
    for button, said in (
        ("Pause", "Paused."),
        ("Resume", "Resumed."),
        ("Send a test", "A test notification is on its way."),
        ("Disable", "Disabled."),
        ("Enable", "Enabled."),
    ):
        page = await operator.submit(page, button)
        assert said in page


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "http://evil.example.com"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["nothing", "origin", "site"],
)
async def test_a_form_of_another_site_does_nothing(
    house: House, operator: Browser, headers: dict[str, str]
) -> None:
    delivery_id = await house.dead_letter()
    token = re.search(FORM_TOKEN, await operator.get(f"/deliveries/{delivery_id}"))
    assert token
    async with operator.client.post(
        f"/deliveries/{delivery_id}/redrive", data={"form_token": token[1]}, headers=headers
    ) as answer:
        assert answer.status == 403
    assert await house.state(delivery_id) == "dead"


async def test_a_form_token_is_of_one_action_alone(house: House, operator: Browser) -> None:
    delivery_id, other = await house.dead_letter("task-1"), await house.dead_letter("task-2")
    token = re.search(FORM_TOKEN, await operator.get(f"/deliveries/{delivery_id}"))
    assert token
    for form_token in (token[1], "", "0" * 64):
        async with operator.client.post(
            f"/deliveries/{other}/redrive",
            data={"form_token": form_token},
            headers={"Sec-Fetch-Site": "same-origin"},
        ) as answer:
            assert answer.status == 403
    assert await house.state(other) == "dead"


async def test_a_dashboard_for_reading_has_no_actions(house: House, guest: Browser) -> None:
    await guest.log_in()
    delivery_id = await house.dead_letter()
    page = await guest.get(f"/deliveries/{delivery_id}")
    assert "Redrive</button>" not in page
    headers = {"Sec-Fetch-Site": "same-origin", **BEARER}
    for path in (f"/deliveries/{delivery_id}/redrive", f"/api/v1/deliveries/{delivery_id}/redrive"):
        async with guest.client.post(path, headers=headers) as answer:
            assert answer.status in (403, 404, 405)
    assert await house.state(delivery_id) == "dead"


async def test_a_session_is_not_enough_for_an_action_of_the_api(
    house: House, operator: Browser
) -> None:
    delivery_id = await house.dead_letter()
    path = f"/api/v1/deliveries/{delivery_id}/redrive"
    async with operator.client.post(path, headers={"Sec-Fetch-Site": "same-origin"}) as answer:
        assert answer.status == 403
    async with operator.client.post(path, headers=BEARER) as answer:
        assert await answer.json() == {"ids": [delivery_id], "not_done": {}}
    assert await house.state(delivery_id) == "pending"


async def test_logging_out_ends_the_session(operator: Browser) -> None:
    await operator.submit(await operator.get("/"), "Log out")
    assert "<h1>Log in</h1>" in await operator.get("/")


async def test_a_login_through_a_proxy_that_replaces_the_host_says_so(guest: Browser) -> None:
    headers = {"Origin": "https://ops.example.com", "Sec-Fetch-Site": "same-origin"}
    async with guest.client.post("/login", data={"token": TOKEN}, headers=headers) as answer:
        found = await answer.text()
    host = guest.client.make_url("/").authority
    assert f"the form is from https://ops.example.com, and Host is {host}:" in found
    assert "a proxy passes on Host" in found


async def test_a_login_at_another_port_with_another_token_ends_no_session(
    open_dashboard: Open,
) -> None:
    tokens = (TOKEN, TOKEN[::-1])
    opened = [await open_dashboard(DashboardAccess(token=token)) for token in tokens]
    bases = [str(each.client.make_url("/")).rstrip("/") for each in opened]
    jar = aiohttp.CookieJar(unsafe=True)  # cookies know no port, here and in browsers
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:
        for base, token in zip(bases, tokens, strict=True):
            await browser.post(f"{base}/login", data={"token": token}, headers={"Origin": base})
        for base in bases:
            async with browser.get(f"{base}/") as answer:
                assert "<h1>Log in</h1>" not in await answer.text()


async def test_a_form_whose_session_is_over_leads_to_its_page_by_the_login(
    house: House, operator: Browser
) -> None:
    delivery_id = await house.dead_letter()
    page = await operator.get(f"/deliveries/{delivery_id}")
    operator.client.session.cookie_jar.clear()
    login = await operator.submit(page, "Redrive")
    assert "Why it is dead" in await operator.submit(login, "Log in", token=TOKEN)
    assert await house.state(delivery_id) == "dead"


async def test_all_dead_letters_of_a_task_are_those_that_the_page_shows(
    house: House, operator: Browser
) -> None:
    shown = await house.dead_letter("task-1")
    other = await house.dead_letter("task-1", tenant="acme")
    page = await operator.get("/deliveries?state=dead&task=task-1")
    assert shown in page
    assert other not in page
    await operator.submit(page, "Redrive them all", sure="on")
    assert (await house.state(shown), await house.state(other)) == ("pending", "dead")

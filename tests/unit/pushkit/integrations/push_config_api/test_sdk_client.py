"""The official SDK's client as the judge of what is answered over HTTP."""

from __future__ import annotations

import pytest
from a2a.client import Client

from pushkit import PushSender
from tests.unit.pushkit.integrations.push_config_api import sdk_steps
from tests.unit.pushkit.integrations.push_config_api.conftest import Server

BINDINGS = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3")]
EACH = pytest.mark.parametrize(("binding", "version"), BINDINGS)


def client_of(server: Server, binding: str, version: str) -> Client:
    server.http.headers["X-User"] = "alice"
    url = server.url + server.json_rpc_path
    return sdk_steps.client_of(url, binding, version, httpx_client=server.http)


@EACH
async def test_a_config_is_created_read_listed_and_deleted(
    server: Server, sender: PushSender, binding: str, version: str
) -> None:
    client = client_of(server, binding, version)
    await sdk_steps.create_read_list_and_delete(client, sender, version)


@EACH
async def test_the_errors_are_the_ones_that_the_client_knows(
    server: Server, binding: str, version: str
) -> None:
    await sdk_steps.meet_the_errors(client_of(server, binding, version))


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_pages_and_tenants_of_1_0(server: Server, sender: PushSender, binding: str) -> None:
    await sdk_steps.page_through_a_tenant(client_of(server, binding, "1.0"), sender)

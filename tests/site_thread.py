"""A dashboard in an event loop of its own: schemathesis asks from the thread of the test."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import schemathesis
from hypothesis import given, settings
from hypothesis.errors import HypothesisDeprecationWarning
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from pushkit.webui.site import Site
from tests.browser import BEARER
from tests.eventually import DEADLINE
from tests.long_runs import examples
from tests.served import served

__all__ = ["Operation", "SiteThread", "check_answers", "check_real_answer", "operations_of"]

Operation: TypeAlias = APIOperation[Any, Any, Any, Any]

_EXAMPLES = examples(12)


class SiteThread(threading.Thread):
    """Serves a dashboard while the block runs.

    Args:
        opened: Opens the dashboard, and closes it again.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Site]]) -> None:
        super().__init__(name="dashboard")
        self._opened = opened
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self.base = ""

    def run(self) -> None:
        """Serve until told to stop."""
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    def __enter__(self) -> SiteThread:
        self.start()
        assert self._listens.wait(DEADLINE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self.join()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        async with self._opened() as site, served(site.app()) as self.base:
            self._listens.set()
            await self._ending.wait()


def operations_of(site: Site) -> list[Operation]:
    """Return the operations that a dashboard describes; nothing of it need be open."""
    described = schemathesis.openapi.from_dict(site.api.document("/api/v1"))
    return [each.ok() for each in described.get_all_operations() if isinstance(each, Ok)]


def check_answers(operation: Operation, service: SiteThread) -> None:
    """Ask for many things that the description allows; every answer has to be as it says."""

    @given(case=operation.as_strategy())
    @settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, database=None)
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=f"{service.base}/api/v1", headers=BEARER)

    with warnings.catch_warnings():
        # The service draws random numbers meanwhile, in its thread, which Hypothesis takes for a
        # strategy's.
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        check()


def check_real_answer(
    operation: Operation,
    service: SiteThread,
    ids: Mapping[str, str],
    *,
    task: Mapping[str, str] | None = None,
) -> None:
    """Ask once for something that is there: the answer has to be as the description says.

    Args:
        operation: What is asked for.
        service: The dashboard.
        ids: An id of each kind of items.
        task: The query of `/task`.
    """
    kind = operation.path.split("/")[1]
    known = {"id": ids[kind]} if "{id}" in operation.path else {}
    query = {each.name: "1" for each in operation.query if each.name in ("body", "answers")}
    if kind == "task":
        query |= task or {}
    case = operation.Case(path_parameters=known, query=query)
    answer = case.call_and_validate(base_url=f"{service.base}/api/v1", headers=BEARER)
    assert answer.status_code == 200
    if operation.method == "get" and not known:
        items = answer.json().get("lines" if kind == "task" else kind)
        assert items != [], "nothing is held against the schema of an item"

"""A dashboard in an event loop of its own: schemathesis asks from the thread of the test."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import schemathesis
from hypothesis import given, settings
from hypothesis.errors import HypothesisDeprecationWarning
from schemathesis.schemas import APIOperation

from pushkit.webui.site import Site
from tests.eventually import DEADLINE
from tests.long_runs import examples
from tests.served import served

__all__ = ["SiteThread", "check_answers"]

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


def check_answers(
    operation: APIOperation[Any, Any, Any, Any], service: SiteThread, token: str
) -> None:
    """Ask for many things that the description allows; every answer has to be as it says."""

    @given(case=operation.as_strategy())
    @settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, database=None)
    def check(case: schemathesis.Case[Any]) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        case.call_and_validate(base_url=f"{service.base}/api/v1", headers=headers)

    with warnings.catch_warnings():
        # The service draws random numbers meanwhile, in its thread, which Hypothesis takes for a
        # strategy's.
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        check()

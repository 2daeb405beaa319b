"""Updates that wait in memory while the outbox is out of reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from pushkit.errors import InvalidUpdateError, PushkitError, StorageError
from pushkit.integrations import enqueue_buffer
from pushkit.integrations.enqueue_buffer import Enqueue, EnqueueBuffer
from tests.eventually import eventually


class Outbox:
    """Stores numbers in order, unless it is away."""

    def __init__(self) -> None:
        self.away = False
        self.stored: list[int] = []

    def storing(self, number: int, error: PushkitError | None = None) -> Enqueue:
        async def enqueue() -> None:
            if self.away:
                raise StorageError("the database is away")
            if error is not None:
                raise error
            self.stored.append(number)

        return enqueue


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_buffer, "_FIRST_PAUSE", 0.01)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
async def make_buffer() -> AsyncIterator[Callable[[int], EnqueueBuffer]]:
    made: list[EnqueueBuffer] = []

    def make(capacity: int) -> EnqueueBuffer:
        made.append(EnqueueBuffer(capacity))
        return made[-1]

    yield make
    for buffer in made:
        await buffer.close()


MakeBuffer = Callable[[int], EnqueueBuffer]


async def test_what_could_not_be_stored_is_stored_later_in_order(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer = make_buffer(10)
    await buffer.run(outbox.storing(1))
    outbox.away = True
    for number in (2, 3):
        await buffer.run(outbox.storing(number))
    assert (outbox.stored, len(buffer)) == ([1], 2)
    outbox.away = False
    await buffer.run(outbox.storing(4))  # must not overtake those that wait

    async def all_stored() -> bool:
        return len(outbox.stored) == 4

    await eventually(all_stored)
    assert (outbox.stored, buffer.refused) == ([1, 2, 3, 4], 0)


async def test_one_more_than_fits_is_refused_and_counted(
    outbox: Outbox, make_buffer: MakeBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = make_buffer(1)
    outbox.away = True
    await buffer.run(outbox.storing(1))
    with pytest.raises(StorageError):
        await buffer.run(outbox.storing(2))
    assert buffer.refused == 1
    assert "its webhooks will not hear of it" in caplog.text


async def test_an_update_that_is_not_valid_is_refused_at_once(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer = make_buffer(10)
    with pytest.raises(InvalidUpdateError):
        await buffer.run(outbox.storing(1, InvalidUpdateError("no task")))
    assert (len(buffer), buffer.refused) == (0, 1)


async def test_one_that_turns_out_not_to_be_valid_does_not_hold_up_the_others(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer = make_buffer(10)
    outbox.away = True
    await buffer.run(outbox.storing(1, InvalidUpdateError("no task")))
    await buffer.run(outbox.storing(2))
    outbox.away = False

    async def emptied() -> bool:
        return not len(buffer)

    await eventually(emptied)
    assert (outbox.stored, buffer.refused) == ([2], 1)


async def test_closing_stores_what_waits_and_counts_what_it_cannot(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer, hopeless = make_buffer(10), make_buffer(10)
    outbox.away = True
    await buffer.run(outbox.storing(1))
    await hopeless.run(outbox.storing(2))
    await hopeless.close()
    outbox.away = False
    await buffer.close()
    assert (outbox.stored, buffer.refused, hopeless.refused) == ([1], 0, 1)

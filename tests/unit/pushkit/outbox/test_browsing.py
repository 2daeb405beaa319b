"""Pages over an outbox that has more rows than a page looks through, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pushkit.outbox.browsing import browse_deliveries
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.storage.paging import WINDOW

if TYPE_CHECKING:
    from tests.unit.pushkit.outbox.conftest import Ledger


def test_a_failed_delivery_is_found_by_its_error_however_many_were_stored_since(
    ledger: Ledger,
) -> None:
    failed = ledger.enqueue(ledger.subscribe())
    ledger.query("UPDATE pushkit_deliveries SET state = 'dead', last_error = 'gone'")
    store_many_more(ledger, owner="alice")

    page = ledger.run(browse_deliveries(DeliveryFilter(error="gone"), before=None, limit=50))

    assert [each.id for each in page.items] == [failed]
    assert (page.before, page.is_cut) == (None, False)


def test_a_page_that_is_not_full_says_where_the_next_one_begins(ledger: Ledger) -> None:
    first = ledger.enqueue(ledger.subscribe())
    store_many_more(ledger, owner="bob")
    wanted = DeliveryFilter(owner="alice")

    page = ledger.run(browse_deliveries(wanted, before=None, limit=50))
    assert (page.items, page.is_cut) == ((), True)

    older = ledger.run(browse_deliveries(wanted, before=page.before, limit=50))
    assert [each.id for each in older.items] == [first]


def store_many_more(ledger: Ledger, *, owner: str) -> None:
    """Store copies of the only delivery, as many as a page looks through, delivered."""
    columns = (
        "subscription_id, tenant, task_id, config_id, origin, version, body_bytes,"
        " notified_at, not_before, scheduled_at"
    )
    ledger.query(
        f"INSERT INTO pushkit_deliveries (id, seq, owner, state, {columns})"  # noqa: S608  # ours
        " WITH RECURSIVE n(number) AS"
        f" (SELECT 2 UNION ALL SELECT number + 1 FROM n WHERE number <= {WINDOW})"
        f" SELECT id || '-' || number, number, '{owner}', 'delivered', {columns}"
        " FROM pushkit_deliveries, n"
    )

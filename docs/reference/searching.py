"""How the site's search weighs pages: what a reader looks for comes before what explains it.

MkDocs calls this; `tests/system/release/site_search.mjs` asks the built site questions.
"""

from typing import Any

BOOSTS = {
    "cards.md": 4,
    "dashboard.md": 4,
    "deploy/README.md": 3,
    "destinations.md": 5,
    "incident.md": 0.5,
    "keys.md": 2,
    "how-to/test-a-receiver.md": 9,
    "migrations.md": 0.5,
    "operations.md": 4,
    "outbox.md": 3,
    "receiver.md": 1.5,
    "receiver-storage.md": 1,
    "reference/codes.md": 6,
    "reference/events.md": 0.001,
    "reference/receiver-settings.md": 6,
    "reference/python.md": 0.01,
    "reference/python/cards.md": 1,
    "reference/python/keys.md": 1,
    "reference/python/operating.md": 0.3,
    "reference/python/receiving.md": 8,
    "reference/python/sending.md": 2,
    "reference/python/testing.md": 2,
    "reference/python/updates.md": 2,
    "reference/sender-options.md": 9,
    "receiver-trust.md": 1.2,
    "scaling.md": 3,
    "secrets.md": 4,
    "upgrading.md": 2,
    "architecture.md": 0.1,
    "decisions.md": 0.1,
    "delivery-path.md": 0.1,
    "interop.md": 0.05,
    "performance.md": 0.3,
    "push-config-api.md": 0.7,
    "testing.md": 2,
    "threat-model.md": 0.02,
    "vectors/README.md": 0.1,
    "wire.md": 0.3,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give a page its weight."""
    page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri, 1)}
    return markdown

"""Data of which some is made for every delivery: frozen for who writes code, and quick to make."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    import dataclasses

    def record(*, frozen, **options):
        """Return the decorator `dataclass`; that nobody changes what is frozen, mypy holds alone.

        What a frozen one is made of goes around the prohibition, attribute by attribute, which
        takes three times as long.
        """
        return dataclasses.dataclass(unsafe_hash=frozen, **options)


__all__ = ["record"]

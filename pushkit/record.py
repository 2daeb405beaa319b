"""Data that pushkit makes by the thousand: frozen for who writes code, quick to make and to import.

What somebody makes once and hands over (options, keys, credentials) is a frozen dataclass, which
refuses to be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field
else:
    import dataclasses
    import functools
    import reprlib
    from dataclasses import field

    def record(*, frozen, eq=True, **options):
        """Return the decorator `dataclass`; that nobody changes what is frozen, mypy holds alone.

        What a frozen one is made of goes around the prohibition, attribute by attribute, which
        takes three times as long. How it shows and compares itself, `dataclass` would compile for
        each class anew: three quarters of what importing a class costs.
        """

        def made(cls):
            shared = {"__repr__": _shown}
            if eq:
                shared |= {"__eq__": _equal, "__hash__": _hash if frozen else None}
            for name, function in shared.items():
                if name not in cls.__dict__:
                    setattr(cls, name, function)
            return dataclasses.dataclass(repr=False, eq=False, **options)(cls)

        return made

    @reprlib.recursive_repr()
    def _shown(self):
        said = (f"{name}={getattr(self, name)!r}" for name in _names(type(self))[0])
        return f"{type(self).__qualname__}({', '.join(said)})"

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = _names(type(self))[1]
        return [getattr(self, name) for name in names] == [getattr(other, name) for name in names]

    def _hash(self):
        return hash(tuple(getattr(self, name) for name in _names(type(self))[2]))

    @functools.cache
    def _names(cls):
        """Return the names of what is shown, compared and hashed."""
        every = dataclasses.fields(cls)
        return (
            [each.name for each in every if each.repr],
            [each.name for each in every if each.compare],
            [each.name for each in every if (each.compare if each.hash is None else each.hash)],
        )


__all__ = ["field", "record"]

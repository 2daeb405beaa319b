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
    import operator
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
        said = (f"{name}={getattr(self, name)!r}" for name in _parts(type(self))[0])
        return f"{type(self).__qualname__}({', '.join(said)})"

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = _parts(type(self))[1]
        return compared(self) == compared(other)

    def _hash(self):
        return hash(_parts(type(self))[2](self))

    @functools.cache
    def _parts(cls):
        """Return the names of what is shown, and what reads the values that count otherwise."""
        every = dataclasses.fields(cls)
        hashed = [each for each in every if (each.compare if each.hash is None else each.hash)]
        return (
            [each.name for each in every if each.repr],
            _values([each for each in every if each.compare]),
            _values(hashed),
        )

    def _values(those):
        names = [each.name for each in those]
        return operator.attrgetter(*names) if names else lambda _: ()


__all__ = ["field", "record"]

"""`record`: a dataclass that is quick to make and to import, and frozen only for the type checker.

It is for objects that pushkit makes by the thousand. Objects that an application makes and hands
over (options, keys, credentials) are frozen dataclasses, which refuse changes at run time.
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
        """Return the decorator `dataclass`, without what costs time; only mypy enforces `frozen`.

        The `__init__` of a frozen dataclass takes three times as long, because it sets each
        attribute around the prohibition. `dataclass` also compiles `__repr__`, `__eq__` and
        `__hash__` for each class, three quarters of its import time; records share theirs.
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
        shown = (f"{name}={getattr(self, name)!r}" for name in _parts(type(self))[0])
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = _parts(type(self))[1]
        return compared(self) == compared(other)

    def _hash(self):
        return hash(_parts(type(self))[2](self))

    @functools.cache
    def _parts(cls):
        """Return the fields of the repr, and getters of the compared and of the hashed values."""
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

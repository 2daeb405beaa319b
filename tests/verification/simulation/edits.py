"""Edits: changes of a named function or constant, by its syntax tree.

A place is `module:name`, with the name as Python qualifies it: `Leases.claim`, or `add.head` for
the local variable `head` of `add`. Layout and wording of the code do not matter to an edit. One
that finds nothing to change raises `LookupError`.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import TypeAlias, cast

__all__ = [
    "Edit",
    "adds",
    "answers",
    "asks_not",
    "calls",
    "ignores",
    "passes",
    "returns",
    "sets",
    "skips",
    "sql",
    "uses",
]

# Returns what a node becomes; None if it stays.
Change: TypeAlias = Callable[[ast.AST], ast.AST | None]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of what is at a place."""

    place: str
    what: str  # what is changed there, for the error
    change: Change

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    def applied(self, source: str) -> str:
        """Return the source of the module with this change.

        Raises:
            LookupError: The place is gone, or has nothing to change.
        """
        name = self.place.partition(":")[2]
        node = _find(ast.parse(source), name.split(".")) if name else ast.parse(source)
        if node is None:
            raise LookupError(f"{self.place} is gone")
        changing = _Changing(self.change)
        new = ast.unparse(ast.fix_missing_locations(changing.visit(copy.deepcopy(node))))
        if not changing.is_done:
            raise LookupError(f"{self.place}: found nothing to change, expected {self.what}")
        if isinstance(node, ast.Module):
            return new
        decorators = getattr(node, "decorator_list", [])
        first = min(each.lineno for each in [node, *decorators])
        lines = source.splitlines(keepends=True)
        new = indent(new, " " * node.col_offset) + "\n"
        return "".join([*lines[: first - 1], new, *lines[node.end_lineno or 0 :]])


class _Changing(ast.NodeTransformer):
    def __init__(self, change: Change) -> None:
        self._change = change
        self.is_done = False

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return node  # a docstring
        changed = self._change(node)
        if changed is None:
            return super().generic_visit(node)
        self.is_done = True
        return changed


_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find(node: ast.AST, names: list[str]) -> ast.stmt | None:
    """Return the definition or assignment of a qualified name."""
    name, *rest = names
    for each in ast.walk(node):
        if isinstance(each, _Named) and each.name == name:
            return _find(each, rest) if rest else each
        if isinstance(each, ast.Assign | ast.AnnAssign) and not rest and name in _set_by(each):
            return each
    return None


def _set_by(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return set().union(*map(_names, targets))


def _names(node: ast.AST) -> set[str]:
    """Return all names, attributes included, that an expression mentions."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute)
    }


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_call(node: ast.AST, callee: str) -> bool:
    return isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(f".{callee}")


# --- statements and expressions -----------------------------------------------------------------


def returns(place: str, value: str) -> Edit:
    """Let a function return this at once."""

    def change(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        # The rest stays: without it, a generator would be none.
        node.body.insert(0, ast.Return(_expression(value)))
        return node

    return Edit(place, "a function", change)


def calls(place: str, callee: str, instead: str, *, when: str = "") -> Edit:
    """Use an expression in place of calls, with their `await` or `yield from`.

    Args:
        place: A function.
        callee: What is called: the end of its dotted name.
        instead: The expression.
        when: A name: only in blocks whose condition mentions it.
    """

    def change(node: ast.AST) -> ast.AST | None:
        called = node.value if isinstance(node, ast.Await | ast.YieldFrom) else node
        return _expression(instead) if _is_call(called, callee) else None

    def change_within(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.If) or when not in _names(node.test):
            return None
        changing = _Changing(change)
        node.body = [cast("ast.stmt", changing.visit(each)) for each in node.body]
        return node if changing.is_done else None

    return Edit(place, f"a call of {callee}", change_within if when else change)


def skips(place: str, callee: str, *, when: str = "") -> Edit:
    """Leave calls out (see `calls`)."""
    return calls(place, callee, "None", when=when)


def passes(place: str, callee: str, argument: str | int, value: str) -> Edit:
    """Pass another value for an argument, by name or position."""

    def change(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.Call) or not _is_call(node, callee):
            return None
        if isinstance(argument, int):
            node.args[argument] = _expression(value)
            return node
        for keyword in node.keywords:
            if keyword.arg == argument:
                keyword.value = _expression(value)
                return node
        return None

    return Edit(place, f"a call of {callee} with {argument!r}", change)


def answers(place: str, asked: str, answer: str) -> Edit:
    """Let the conditions that mention a name be something else: `True`, or an expression."""

    def change(node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.If | ast.IfExp | ast.While) and asked in _names(node.test):
            node.test = _expression(answer)
            return node
        if isinstance(node, ast.comprehension) and any(asked in _names(one) for one in node.ifs):
            node.ifs = [_expression(answer) if asked in _names(one) else one for one in node.ifs]
            return node
        return None

    return Edit(place, f"a condition about {asked}", change)


def asks_not(place: str, asked: str) -> Edit:
    """Leave the parts out of `and` and `or` that mention a name."""

    def change(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.BoolOp):
            return None
        kept = [each for each in node.values if asked not in _names(each)]
        if len(kept) in {0, len(node.values)}:
            return None
        return kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)

    return Edit(place, f"an `and` or `or` with {asked}", change)


def sets(place: str, value: str) -> Edit:
    """Give a variable or constant another value."""

    def change(node: ast.AST) -> ast.AST | None:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            return None
        node.value = _expression(value)
        return node

    return Edit(place, "an assignment", change)


def uses(place: str, expression: str, instead: str) -> Edit:
    """Use one expression in place of another."""
    wanted = ast.dump(_expression(expression))

    def change(node: ast.AST) -> ast.AST | None:
        return _expression(instead) if ast.dump(node) == wanted else None

    return Edit(place, expression, change)


def adds(module: str, code: str) -> Edit:
    """Append definitions to a module, for what other edits put there."""

    def change(node: ast.AST) -> ast.AST | None:
        assert isinstance(node, ast.Module)
        node.body += ast.parse(code).body
        return node

    return Edit(f"{module}:", "a module", change)


# --- SQL ----------------------------------------------------------------------------------------


def sql(place: str, pattern: str, instead: str) -> Edit:
    """Replace a pattern in texts of SQL.

    The n-th interpolation of a text is `{n}`, from 0. The replacement may have other expressions in
    braces, too.
    """

    def change(node: ast.AST) -> ast.AST | None:
        match node:
            case ast.Constant(value=str() as before):
                given: list[ast.expr] = []
            case ast.JoinedStr(values=values):
                given = [each for each in values if isinstance(each, ast.FormattedValue)]
                numbers = iter(range(len(given)))
                before = "".join(
                    str(each.value) if isinstance(each, ast.Constant) else f"{{{next(numbers)}}}"
                    for each in values
                )
            case _:
                return None
        after = re.sub(pattern, instead, before)
        return None if after == before else _joined(after, given)

    return Edit(place, f"SQL like {pattern}", change)


def _joined(text: str, given: list[ast.expr]) -> ast.JoinedStr:
    parts: list[ast.expr] = []
    for number, part in enumerate(re.split(r"\{(.+?)\}", text)):
        if number % 2 == 0:
            parts.append(ast.Constant(part))
        elif part.isdigit():
            parts.append(given[int(part)])
        else:
            parts.append(ast.FormattedValue(_expression(part), -1))
    return ast.JoinedStr(parts)


def ignores(place: str, column: str) -> Edit:
    """Let conditions on a column always hold, in SQL; their parameters stay."""
    value = r"(?:'[^']*'|\$\{\d+\}|[$\w.]+)"
    return sql(place, rf"(?<![\w.])(\w+\.)?{column} (?:=|<=|>=|<>|<|>) {value}", r"(\g<0> OR TRUE)")

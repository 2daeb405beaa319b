"""Mutants of a module: every small change of its text that changes its meaning.

Text that no caller sees is not changed: annotations, docstrings, `__all__`, decorators, and the
words of messages and log lines.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

__all__ = ["Mutant", "mutants_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change."""

    name: str  # a hash of the change without its position, so that it survives changes elsewhere
    path: str  # the file
    line: int  # the line where it begins, from 1
    what: str  # the kind of change
    start: int  # the offset of the replaced text
    end: int  # the offset of its end
    text: str  # the replacement

    def applied(self, source: str) -> str:
        """Return the module with this change."""
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(source: str, path: str) -> list[Mutant]:
    """Return all mutants of a module that are valid Python."""
    tree = ast.parse(source)
    starts = _line_starts(source)
    tops = [_whole(node, starts) for node in tree.body]
    seen: Counter[str] = Counter()
    found: list[Mutant] = []
    for node in _visible(tree):
        start, end = _span(node, source, starts)
        first, last = next(top for top in tops if top[0] <= start < top[1])
        before = source[start:end]
        for what, text in _changes(node, before):
            change = f"{path} {what} {before} -> {text}"
            seen[change] += 1
            mutant = Mutant(
                name=sha256(f"{change} {seen[change]}".encode()).hexdigest()[:10],
                path=path,
                line=node.lineno,
                what=what,
                start=start,
                end=end,
                text=text,
            )
            if text != before and _is_python(f"{source[first:start]}{text}{source[end:last]}"):
                found.append(mutant)
    return found


_Node = ast.expr | ast.stmt
_MESSAGES = re.compile(r"_?log(ger)?$|warnings|click|echo")


def _visible(node: ast.AST) -> Iterator[_Node]:
    """Yield the nodes whose meaning callers can see, from the top."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params", "bases", "msg"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_silent(child):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child
                yield from _visible(child)


def _is_silent(node: ast.AST) -> bool:  # noqa: PLR0911  # a table
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return bool(_MESSAGES.match(name))
        case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "NewType")):
            return True
        case ast.Call(func=ast.Name(id=name)):  # the words of an exception
            return name.endswith("Error")
    return False


def _changes(  # noqa: PLR0912  # a table
    node: _Node, before: str
) -> Iterator[tuple[str, str]]:
    """Yield the changes of one node: the kind, and the replacement."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in _COMPARED.get(type(operator), ()):
                yield "comparison", _with(node, lambda n, o=other: n.ops.__setitem__(0, o()))
        case ast.BoolOp(op=operator, values=values):
            turned = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and-or", _with(node, lambda n: setattr(n, "op", turned))
            for index in range(len(values)):
                yield "operand left out", _with(node, lambda n, i=index: n.values.pop(i))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not left out", f"({ast.unparse(operand)})"
        case ast.BinOp(op=operator):
            for other in _ARITHMETIC.get(type(operator), ()):
                yield "arithmetic", _with(node, lambda n, o=other: setattr(n, "op", o()))
        case ast.IfExp(test=test):
            negated = ast.UnaryOp(op=ast.Not(), operand=test)
            yield "condition", _with(node, lambda n: setattr(n, "test", negated))
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() as value):
            yield "constant", str(value + 1)
            if value > 1:
                yield "constant", str(value - 1)
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield from _changed_text(before)
        case ast.Call():
            yield from _changed_call(node)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "returns nothing", "return None"
        case ast.If() | ast.While():
            yield "condition", _with_head(before, node)
        case ast.Expr(value=ast.YieldFrom() | ast.Await() | ast.Call() | ast.Yield()):
            yield "statement left out", "pass"
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield "statement left out", "pass"


_COMPARED: Final[dict[type, tuple[type, ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: Final[dict[type, tuple[type, ...]]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
    ast.Pow: (ast.Mult,),
}


def _with(node: _Node, change: Callable[..., object]) -> str:
    changed = copy.deepcopy(node)
    change(changed)
    return f"({ast.unparse(changed)})"


def _with_head(before: str, node: ast.If | ast.While) -> str:
    """Negate the condition, and keep the block as it is written."""
    keyword = "while" if isinstance(node, ast.While) else before.split(None, 1)[0]
    head = f"{keyword} not ({ast.unparse(node.test)}):"
    body = before.splitlines(keepends=True)[node.body[0].lineno - node.lineno :]
    return f"{head}\n{''.join(body)}"


def _changed_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    positional = len(node.args)
    if positional > 1 and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
        swapped = lambda n: n.args.__setitem__(slice(0, 2), n.args[1::-1])  # noqa: E731
        yield "arguments swapped", _with(node, swapped)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield "argument left out", _with(node, lambda n, i=index: n.keywords.pop(i))


# --- SQL and other text -------------------------------------------------------------------------

_SQL: Final = re.compile(r"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|AND|VALUES|ORDER BY|SET|ON)\b")
_SQL_ENDS: Final = r"(?=\"|'| AND | OR | ORDER | GROUP | LIMIT | RETURNING| FOR |\)|$)"
_IN_SQL: Final = (
    (r" AND \(?[^\"'()]*?" + _SQL_ENDS, ""),
    (r" FOR UPDATE( SKIP LOCKED)?", ""),
    (r" IS NOT NULL", " IS NULL"),
    (r" IS NULL", " IS NOT NULL"),
    (r" <= ", " < "),
    (r" < ", " <= "),
    (r" >= ", " > "),
    (r" > ", " >= "),
    (r" <> ", " = "),
    (r"(?<=[a-z_]) = (?=[$'a-z])", " <> "),
    (r" DESC", ""),
    (r" NOT IN ", " IN "),
    (r" AND ", " OR "),
    (r" \+ 1", ""),
    (r"\bMIN\(", "MAX("),
    (r"\bMAX\(", "MIN("),
)


def _changed_text(before: str) -> Iterator[tuple[str, str]]:
    if not _SQL.search(before):
        plain = re.fullmatch(r'"[^"\\{}]*"', before)
        if plain and before != '""':
            yield "constant", f'"{before[1:-1]}X"'
        return
    for pattern, other in _IN_SQL:
        for found in re.finditer(pattern, before):
            yield "SQL", f"{before[: found.start()]}{other}{before[found.end() :]}"


# --- places -------------------------------------------------------------------------------------


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: _Node, source: str, starts: list[int]) -> tuple[int, int]:
    """Return the offsets of a node in the text; Python counts a line in bytes."""

    def offset(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def _whole(node: ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Return the offsets of the lines of a statement."""
    decorators = getattr(node, "decorator_list", [])
    first = min(one.lineno for one in [node, *decorators])
    return starts[first - 1], starts[node.end_lineno or node.lineno]


def _is_python(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True

"""RFC 8785 a second time, by other means: what `canonical_json` is held against.

    python -m tests.unit.pushkit.cards.independent_jcs --cases 100000 [--node]

Numbers come from `decimal` by the steps of ECMA-262 Number::toString, names are sorted as lists of
UTF-16 code units, strings are escaped character by character. With `--node`, a JavaScript engine is
the judge instead: JSON.stringify is what RFC 8785 was made from.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

from pushkit.cards.forms import canonical_json

_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_NODE = """
const sorted = (v) => Array.isArray(v) ? '[' + v.map(sorted).join(',') + ']'
  : v === null || typeof v !== 'object' ? JSON.stringify(v)
  : '{' + Object.keys(v).sort().map((k) => JSON.stringify(k) + ':' + sorted(v[k])).join(',') + '}';
const lines = require('fs').readFileSync(0, 'utf8').split('\\n').filter((line) => line);
process.stdout.write(lines.map((line) => sorted(JSON.parse(line))).join('\\n') + '\\n');
"""


def canonicalize(value: Any) -> str:
    """Return the RFC 8785 form of a JSON value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return number(float(value))
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonicalize, value)) + "]"
    members = sorted(value.items(), key=lambda member: code_units(member[0]))
    return "{" + ",".join(f"{quoted(k)}:{canonicalize(v)}" for k, v in members) + "}"


def code_units(text: str) -> list[int]:
    units = []
    for point in map(ord, text):
        if point > 0xFFFF:
            units += [0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF)]
        else:
            units.append(point)
    return units


def quoted(text: str) -> str:
    escaped = (
        _SHORT.get(ord(char)) or (f"\\u{ord(char):04x}" if ord(char) < 0x20 else char)
        for char in text
    )
    return '"' + "".join(escaped) + '"'


def number(value: float) -> str:
    """ECMA-262 Number::toString: s are the k shortest digits, and value = s * 10^(n-k)."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    s, k = "".join(map(str, digits)), len(digits)
    n = exponent + k
    minus = "-" if sign else ""
    if k <= n <= 21:
        return minus + s + "0" * (n - k)
    if -6 < n <= 21:
        return minus + (f"{s[:n]}.{s[n:]}" if n > 0 else f"0.{'0' * -n}{s}")
    power = f"{'+' if n > 0 else '-'}{abs(n - 1)}"
    return f"{minus}{s}e{power}" if k == 1 else f"{minus}{s[0]}.{s[1:]}e{power}"


def random_value(chance: random.Random, depth: int = 0) -> Any:
    if depth == 4 or chance.random() < 0.7:
        return random_scalar(chance)
    members = [random_value(chance, depth + 1) for _ in range(chance.randrange(5))]
    if chance.random() < 0.5:
        return members
    return {random_text(chance): member for member in members}


def random_scalar(chance: random.Random) -> Any:
    return chance.choice(
        (
            lambda: chance.choice([None, True, False]),
            lambda: chance.randint(-(2**53) + 1, 2**53 - 1) >> chance.randrange(53),
            lambda: random_double(chance),
            lambda: chance.randint(-9999, 9999) / 10 ** chance.randrange(12),
            lambda: random_text(chance),
        )
    )()


def random_double(chance: random.Random) -> float:
    while True:
        (value,) = struct.unpack(">d", chance.randbytes(8))
        if value - value == 0:  # neither infinite nor NaN
            return float(value)


def random_text(chance: random.Random) -> str:
    ranges = ((0x00, 0x20), (0x20, 0x80), (0x80, 0x800), (0xE000, 0x10000), (0x10000, 0x110000))
    return "".join(
        chr(chance.randrange(*chance.choice(ranges))) for _ in range(chance.randrange(6))
    )


def by_node(values: list[Any], node: str) -> list[str]:
    lines = "\n".join(json.dumps(value) for value in values)
    done = subprocess.run(  # noqa: S603 - our own script
        [node, "-e", _NODE], input=lines.encode(), capture_output=True, check=True
    )
    return done.stdout.decode("utf-8").split("\n")[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=8785)
    parser.add_argument("--node", action="store_true")
    options = parser.parse_args()
    node = shutil.which("node")
    if options.node and node is None:
        print("canonical JSON beside JavaScript's: not run here: Node is not installed")  # noqa: T201
        return
    chance = random.Random(options.seed)  # noqa: S311 - repeatable on purpose
    values = [random_value(chance) for _ in range(options.cases)]
    expected = by_node(values, node) if options.node and node else list(map(canonicalize, values))
    assert len(expected) == len(values)
    different = [
        value
        for value, text in zip(values, expected, strict=True)
        if canonical_json(value).decode("utf-8") != text
    ]
    print(f"{options.cases} values, seed {options.seed}: {len(different)} differ")  # noqa: T201
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()

"""Colours, where somebody looks: on a terminal, and not where `NO_COLOR` is set."""

from __future__ import annotations

import os
import sys

import click

__all__ = ["painted"]


def painted(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Return text in a colour, if standard output is a terminal; else as it is."""
    # no-color.org: any value that is not empty.
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None)

"""The peers' environments: virtual environments and node_modules, under a git-ignored folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["FOLDER", "NODE", "PEERS", "ROOT", "UnavailableError", "node_modules", "python_of"]

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
FOLDER = ROOT / ".interop"
_NODE_AT_LEAST = 20


class UnavailableError(Exception):
    """A peer that cannot be had here, and why."""


def python_of(name: str, *requirements: str) -> Path:
    """Return the interpreter of an environment that holds some packages, and pushkit's own."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    # What pushkit itself needs is installed beside the peer, and may have changed since.
    wanted = "\n".join([*requirements, (ROOT / "pyproject.toml").read_text("utf-8")])
    if not _holds(folder, wanted):
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        # pushkit's dependencies; its code comes from the checkout, by PYTHONPATH.
        _run(*pip, *requirements, str(ROOT))
        _run(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "pushkit")
        _note(folder, wanted)
    return python


def node_modules(name: str, *packages: str) -> Path:
    """Return a folder in which some npm packages are installed."""
    folder = FOLDER / name
    wanted = "\n".join(packages)
    if not _holds(folder, wanted):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', "utf-8")
        if shutil.which("npm") is None:
            raise UnavailableError("npm is not installed")
        _run("npm", "install", "--silent", "--no-audit", "--no-fund", *packages, folder=folder)
        _note(folder, wanted)
    return folder


def _holds(folder: Path, wanted: str) -> bool:
    note = folder / ".installed"
    return note.exists() and note.read_text("utf-8") == wanted


def _note(folder: Path, wanted: str) -> None:
    (folder / ".installed").write_text(wanted, "utf-8")


def _node() -> str:
    found = shutil.which("node")
    if found is None:
        raise UnavailableError(f"Node is not installed: {_NODE_AT_LEAST} or newer is needed")
    version = subprocess.run(  # noqa: S603
        [found, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _NODE_AT_LEAST:
        raise UnavailableError(f"found Node {version}, {_NODE_AT_LEAST} or newer is needed")
    return found


class _Node:
    """Node, looked for when it is first needed."""

    def __str__(self) -> str:
        return _node()


NODE = _Node()


def _run(*command: str, folder: Path | None = None) -> None:
    try:
        subprocess.run(  # noqa: S603
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=600
        )
    except (subprocess.SubprocessError, OSError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        raise UnavailableError(
            f"{command[0]} failed: {said.strip().splitlines()[-1][:200]}"
        ) from exc

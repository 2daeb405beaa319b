"""The peers' environments: virtual environments and node_modules, under a git-ignored folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

__all__ = [
    "FOLDER",
    "PEERS",
    "ROOT",
    "MissingToolError",
    "UnavailableError",
    "cargo_program",
    "go_program",
    "maven_program",
    "node",
    "node_modules",
    "python_of",
    "tool",
    "typescript_program",
]

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
FOLDER = ROOT / ".interop"
_NODE_AT_LEAST = 20
_BUILD_SECONDS = 3600  # a Rust peer with all that it needs, on a busy machine


class UnavailableError(Exception):
    """A peer that cannot be had here, and why."""


class MissingToolError(UnavailableError):
    """A peer's language is not installed here: nothing is said of the peer."""


def python_of(name: str, *requirements: str) -> Path:
    """Return the interpreter of an environment that holds some packages, and pushkit's own."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    # What pushkit itself needs is installed beside the peer, and may have changed since.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = "\n".join([*requirements, *project["dependencies"]])
    if not _holds(folder, wanted):
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        # pushkit's dependencies; its code comes from the checkout, by PYTHONPATH.
        _run(*pip, *requirements, str(ROOT))
        _run(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", project["name"])
        _note(folder, wanted)
    return python


def node_modules(name: str, *packages: str) -> Path:
    """Return a folder in which some npm packages are installed."""
    folder = FOLDER / name
    wanted = "\n".join(packages)
    if not _holds(folder, wanted):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', "utf-8")
        install = ("install", "--silent", "--no-audit", "--no-fund", *packages)
        _run(tool("npm"), *install, folder=folder)
        _note(folder, wanted)
    return folder


def go_program(source: Path) -> tuple[str, ...]:
    """Return the command of a Go program, built where it has changed. Go keeps its own cache."""
    program = _place(source) / "program"
    go = tool("go", "/usr/local/go/bin")
    _run(go, "build", "-p", "1", "-o", str(program), ".", folder=source)
    return (str(program),)


def cargo_program(source: Path, name: str) -> tuple[str, ...]:
    """Return the command of a Rust program, built where it has changed."""
    place = _place(source)
    cargo = tool("cargo", str(Path("~/.cargo/bin").expanduser()))
    build = ("build", "--locked", "--quiet", "--jobs", "1", "--target-dir", str(place))
    _run(cargo, *build, folder=source)
    return (str(place / "debug" / name),)


def maven_program(source: Path, main: str = "Main") -> tuple[str, ...]:
    """Return the command of a Java program, built where it has changed."""
    place, wanted = _place(source), _contents(source)
    if not _holds(place, wanted):
        steps = (
            "compile",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={place / 'classpath'}",
        )
        _run(tool("mvn"), "--quiet", "--batch-mode", f"-Dfolder={place}", *steps, folder=source)
        _note(place, wanted)
    classes = f"{place / 'classes'}{os.pathsep}{(place / 'classpath').read_text('utf-8')}"
    return (tool("java"), "-cp", classes, main)


def typescript_program(source: Path) -> tuple[str, ...]:
    """Return the command of a TypeScript program, built where it has changed."""
    place, wanted = _place(source), _contents(source)
    if not _holds(place, wanted):
        shutil.copytree(
            source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules", "dist")
        )
        _run(tool("npm"), "ci", "--silent", "--no-audit", "--no-fund", folder=place)
        _run(tool("npm"), "run", "--silent", "build", folder=place)
        _note(place, wanted)
    return (node(), str(place / "dist" / "main.js"))


def _place(source: Path) -> Path:
    place = FOLDER / "programs" / source.parent.name / source.name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _contents(source: Path) -> str:
    left_out = {"node_modules", "dist", "target"}
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    return "\n".join(path.read_text("utf-8") for path in files if left_out.isdisjoint(path.parts))


def tool(name: str, *also: str) -> str:
    """Return where a tool of a language is: on the path, or where its installer puts it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *also])
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingToolError(f"{name} is not installed")
    return found


def _holds(folder: Path, wanted: str) -> bool:
    note = folder / ".installed"
    return note.exists() and note.read_text("utf-8") == wanted


def _note(folder: Path, wanted: str) -> None:
    (folder / ".installed").write_text(wanted, "utf-8")


def node() -> str:
    """Return where Node is."""
    try:
        found = tool("node")
    except MissingToolError as exc:
        raise MissingToolError(f"{exc}: {_NODE_AT_LEAST} or newer is needed") from None
    version = subprocess.run(  # noqa: S603
        [found, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _NODE_AT_LEAST:
        raise MissingToolError(f"found Node {version}, {_NODE_AT_LEAST} or newer is needed")
    return found


def _run(*command: str, folder: Path | None = None) -> None:
    try:
        subprocess.run(  # noqa: S603
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_BUILD_SECONDS
        )
    except (subprocess.SubprocessError, OSError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        raise UnavailableError(
            f"{command[0]} failed: {said.strip().splitlines()[-1][:200]}"
        ) from exc

"""`make dist-check`: `dist/` is reproducible, and works wherever it may be installed.

The wheel goes into an empty environment, alone and with all its extras, with the lowest and with
the newest versions of what it depends on, on every Python from 3.11 on that is found; `smoke.py`
runs there.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
SMOKE = Path(__file__).with_name("smoke.py")
NOT_FOR_USERS = {"demo", "dev", "docs", "examples", "test"}
MINORS = range(11, 16)
HERE = f"3.{sys.version_info.minor}"
# What a type checker may infer differently is, for the most part, the options of commands.
TYPES_KNOWN = 99.5  # percent


class CheckError(Exception):
    """What was found is not what is promised."""


def main() -> int:
    """Check `dist/`, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.release.check")
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--only", metavar="3.N", help="this Python alone")
    args = parser.parse_args()
    [wheel], [sdist] = args.dist.glob("*.whl"), args.dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        build_again(wheel, sdist, Path(folder))
    failed = 0
    found = pythons()
    for minor in MINORS:
        version = f"3.{minor}"
        if args.only not in (None, version):
            continue
        if version not in found:
            print(f"{version}: untried, no such Python was found")
            continue
        for which in ("newest", "lowest"):
            try:
                print(f"{version} {which}:", install_and_try(wheel, found[version], version, which))
            except CheckError as exc:
                failed += 1
                print(f"{version} {which}: FAILED\n{exc}")
            sys.stdout.flush()
    return 1 if failed else 0


# --- the same bytes -----------------------------------------------------------------------------


def build_again(wheel: Path, sdist: Path, folder: Path) -> None:
    """Build both once more, and the wheel from the sdist; compare."""
    build(ROOT, folder / "again")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build(folder / sdist.name.removesuffix(".tar.gz"), folder / "from-sdist", "--wheel")
    for first, second in (
        (wheel, folder / "again" / wheel.name),
        (sdist, folder / "again" / sdist.name),
        (wheel, folder / "from-sdist" / wheel.name),
    ):
        if not filecmp.cmp(first, second, shallow=False):
            raise CheckError(f"{second} has other bytes than {first}")
    print(f"{wheel.name}, {sdist.name}: the same bytes when built again, and from the sdist")


def build(source: Path, target: Path, *arguments: str) -> None:
    """Build in an environment of its own."""
    run(sys.executable, "-m", "build", "--outdir", target, *arguments, source)


# --- wherever it may be installed ---------------------------------------------------------------


def pythons() -> dict[str, Path]:
    """Return the Pythons of this machine that can make an environment, by their version."""
    found: dict[str, Path] = {}
    for minor in MINORS:
        for python in candidates(f"3.{minor}"):
            asked = subprocess.run(  # noqa: S603  # a Python
                [python, "-c", "import ensurepip, sqlite3, ssl, sys; print(*sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if asked.stdout.split() == ["3", str(minor)]:
                found[f"3.{minor}"] = python
                break
    return found


def candidates(version: str) -> Iterator[Path]:
    """Yield what may be that Python: on the path, of pyenv, of uv."""
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python"))
    yield from sorted(home.glob(f".local/share/uv/python/*-{version}.*/bin/python{version}"))


def install_and_try(wheel: Path, python: Path, version: str, which: str) -> str:
    """Install the wheel alone, then with its extras; say what was tried."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv")
        inside = folder / "venv" / "bin" / "python"
        constraints = folder / "constraints.txt"
        fields = metadata(wheel)
        for extras in ([], users_extras(fields)):
            # An extra may need more of what the package needs itself: pip raises that, and no more.
            lines = lowest(fields, version, extras) if which == "lowest" else []
            constraints.write_text("\n".join(lines))
            what = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
            pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run(*pip, "--only-binary", ":all:", "--constraint", constraints, what)
            run(inside, "-I", SMOKE, *(["--extras"] if extras else []), cwd=folder)
            if extras and which == "newest" and version == HERE:
                print(f"{version} types:", typed(folder / "venv"))
        listed = run(inside, "-m", "pip", "freeze", "--disable-pip-version-check").splitlines()
    return f"ok, alone and with {len(users_extras(fields))} extras ({len(listed)} distributions)"


def typed(venv: Path) -> str:
    """Say how much of what is public has a type that every checker knows."""
    shares = []
    for package in ("pushkit", "receiver"):
        options = ["--verifytypes", package, "--ignoreexternal"]
        asked = subprocess.run(  # noqa: S603  # a tool of the extra `dev`
            [sys.executable, "-m", "basedpyright", *options],
            cwd=venv.parent,
            # It asks the first Python on the path what is installed.
            env=os.environ | {"PATH": f"{venv}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)},
            capture_output=True,
            text=True,
            check=False,  # it is not content with less than all
        )
        found = re.search(r"completeness score: ([\d.]+)%", asked.stdout)
        if found is None or float(found[1]) < TYPES_KNOWN:
            raise CheckError("\n".join((asked.stdout + asked.stderr).splitlines()[-40:]))
        shares.append(f"{package} {found[1]}%")
    return ", ".join(shares)


def metadata(wheel: Path) -> Message:
    """Return the fields of a wheel's METADATA."""
    with ZipFile(wheel) as archive:
        [path] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(path).decode())


def users_extras(fields: Message) -> list[str]:
    """Return the extras that are for users."""
    return sorted(set(fields.get_all("Provides-Extra", [])) - NOT_FOR_USERS)


def lowest(fields: Message, version: str, extras: Sequence[str]) -> list[str]:
    """Return the lowest version of what the package needs, or these extras, as constraints."""
    bounds: dict[str, Version] = {}
    for line in fields.get_all("Requires-Dist", []):
        wanted = Requirement(line)
        environments = [
            {"extra": extra, "python_version": version, "python_full_version": f"{version}.0"}
            for extra in extras or [""]
        ]
        for_extra = "extra ==" in str(wanted.marker)
        if for_extra is not bool(extras):
            continue
        if wanted.marker and not any(map(wanted.marker.evaluate, environments)):
            continue
        [bound] = [Version(each.version) for each in wanted.specifier if each.operator == ">="]
        bounds[wanted.name] = max(bound, bounds.get(wanted.name, bound))
    return [f"{name}=={bound}" for name, bound in bounds.items()]


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command that has to end well, and return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ran = subprocess.run(  # noqa: S603  # ours
        [str(each) for each in command],
        cwd=cwd,
        env=environment | {"NOT_FROM": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise CheckError("\n".join((ran.stdout + ran.stderr).splitlines()[-15:]))
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())

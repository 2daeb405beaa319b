"""The commands of README.md and docs/ run as they stand, a page's one after another in one shell.

They are typed into a folder with the files that pages presume. What serves until it is ended is
started beside the others, and ended with the page, or where the page says `# Ctrl-C: COMMAND`; it
must then end well. Of the pages in `SESSIONS` the Python is programs that the commands start, and
what is shown of their output is what they print.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pushkit import PushSender
from pushkit.keys.files import load_key_ring
from tests.contract.docs.bench import ISSUER, completed
from tests.contract.docs.blocks import ROOT, SESSIONS, Block, blocks, of, pages_with
from tests.contract.docs.conftest import World
from tests.forked import forked
from tests.ports import free_port
from tests.system.cli.test_inbox_cli import fill

# What listens where nothing else is said.
TOGETHER = 120.0  # seconds for all commands of a page
PORTS = ("8001", "9000", "8090", "8091", "9702")
SERVES = re.compile(r"(pushkit (listen|dashboard|worker)|receiver (serve|dashboard)) ?.*")
OF_ITS_OWN = "in a terminal of its own"  # as a comment: what runs there serves, too
ENDED = re.compile(r"# Ctrl-C: (\S+) (\S+)")
# A status of 1 is an answer: there is something to do, or it was done already.
ASKS = re.compile(r"(pushkit|receiver) migrate --check.*|pushkit outbox retry-now --all")

PROLOGUE = """\
set -eu
end() {
    for file in $1.pid; do
        test -e "$file" || continue
        process=$(cat "$file")
        rm "$file"
        kill "$process"
        wait "$process" || [ "$? ${file%%-*}" = "143 python" ]  # Python ends by the signal itself
    done
}
serve() {
    end "$1-$2"  # two of a kind have one address
    : >"$1-$2.log"  # what the former one said is not said by this one
    "$@" >"$1-$2.log" 2>&1 &
    echo $! >"$1-$2.pid"
    until grep -qiE "listening on|dashboard on|delivers for|running on" "$1-$2.log"; do
        kill -0 $! || { cat "$1-$2.log"; exit 1; }
        sleep 0.1
    done
}
"""
COMMAND = '#!/bin/sh\nexec {world} {name} "$@"\n'
PIP = """\
#!/bin/sh
# Whether what is to be installed has the extras that stand there: nothing is installed.
exec {python} -c 'import re, sys, tomllib
extras = tomllib.load(open("{root}/pyproject.toml", "rb"))["project"]["optional-dependencies"]
asked = re.search(r"\\[(.*)\\]", sys.argv[-1])
assert set(asked[1].split(",") if asked else ()) <= set(extras), sys.argv' "$@"
"""
PYTHON = """\
#!/bin/sh
case $1 in
*.py) exec {world} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
PRINTED = """\
#!{python} -IS
import glob, json, re, sys, time
patterns = json.load(open(sys.argv[1]))
end = time.monotonic() + 60
while True:
    said = "".join(open(path, errors="replace").read() for path in glob.glob("*.log"))
    missing = [p for p in patterns if not re.search(rf"^\\s*{{p}}\\s*$", said, re.MULTILINE)]
    if not missing:
        break
    if time.monotonic() > end:
        sys.exit("not printed: " + "; ".join(missing))
    time.sleep(0.1)
"""
MAKE = '#!/bin/sh\nexec {make} -n -C {root} "$@"\n'


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("sh"))
async def test_the_commands_of_a_page_run(
    page: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PUSHKIT_", "RECEIVER_"))]:
        monkeypatch.delenv(name)
    world.ports |= {port: free_port() for port in PORTS}
    write_programs(world.folder / "bin")
    for block in of(page, "toml", "python"):
        if found := re.match(r"# ([\w-]+\.\w+)\n", block.text):
            Path(found[1]).write_text(placed(block.text, world.ports if page in SESSIONS else {}))
    ids = await SCENES.get(page, nothing_more)(world)
    script = "".join(
        waited(block, world.ports) if block.language == "text" else typed(block, ids, world.ports)
        for block in blocks()
        if block.page == page and in_a_shell(block)
    )
    with Path("said.log").open("wb") as log:
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-c", f"{PROLOGUE}{script}end '*'\n"),
            env=environment(world),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(TOGETHER):
            status = await shell.wait()
    except TimeoutError:
        status = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()
    assert status == 0, "".join(path.read_text() for path in world.folder.glob("*.log"))[-3000:]


@pytest.mark.parametrize("page", SESSIONS)
def test_the_python_of_a_session_is_in_programs_that_it_starts(page: str) -> None:
    starts = "".join(block.text for block in of(page, "sh", "toml"))
    for block in of(page, "python"):
        named = re.match(r"# (\w+)\.py\n", block.text)
        assert named, f"{page}:{block.line}"
        assert f"python {named[1]}.py" in starts or f'call = "{named[1]}:' in starts


def placed(text: str, ports: dict[str, int]) -> str:
    """Return a text with other ports on this machine."""
    for port in ports.keys() & set(PORTS):
        text = re.sub(rf"(127\.0\.0\.1:|port=){port}\b", rf"\g<1>{ports[port]}", text)
    return text


def in_a_shell(block: Block) -> bool:
    """Return whether it is typed into the shell, or printed by what was."""
    if block.language == "text":
        return block.page in SESSIONS
    return block.language == "sh" and block.exempt is None


def waited(block: Block, ports: dict[str, int]) -> str:
    """Return what waits until a block is printed; `…` stands for anything, a time for any."""
    patterns = []
    for line in placed(block.text, ports).splitlines():
        pattern = re.sub(r"\d\d:\d\d:\d\d", "TIME", re.escape(line.strip())).replace("…", ".*")
        patterns.append(re.sub("TIME", r"\\d\\d:\\d\\d:\\d\\d", pattern))
    Path(f"{block.line}.json").write_text(json.dumps(patterns))
    return f"echo '{block.page}:{block.line}'; printed {block.line}.json\n"


def environment(world: World) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{world.folder}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PACE": "0.2",  # of the tutorial's agent
        "WORLD": json.dumps(world.ports),
    }


def write_programs(folder: Path) -> None:
    """Put our commands on the path, and what would install or build in their place."""
    folder.mkdir()
    known = {"python": sys.executable, "root": ROOT}
    known["world"] = shlex.join(forked("tests.contract.docs.world"))
    known["make"] = shutil.which("make")
    for name, text in {
        "pushkit": COMMAND,
        "receiver": COMMAND,
        "pip": PIP,
        "make": MAKE,
        "python": PYTHON,
        "printed": PRINTED,
    }.items():
        (folder / name).write_text(text.format(name=name, **known))
        (folder / name).chmod(0o755)


def typed(block: Block, ids: dict[str, str], ports: dict[str, int]) -> str:
    """Return a block as it is typed, each command told before it runs."""
    text = block.text.replace("\\\n", " ")
    for shown, real in ids.items():
        text = text.replace(shown, real)
    text = placed(text, ports)
    script = []
    for line in text.splitlines():
        command = line.split(" #")[0].strip()
        if ended := ENDED.match(line):
            command = f"end {ended[1]}-{ended[2]}"
        elif SERVES.fullmatch(command) or line.endswith(OF_ITS_OWN):
            command = f"serve {command}"
        elif ASKS.fullmatch(command):
            command += " || [ $? = 1 ]"
        script += [f"echo {shlex.quote(f'{block.page}: {command}')}", command]
    return "\n".join(script) + "\n"


# --- what is there before a page's first command ------------------------------------------------


async def nothing_more(_world: World) -> dict[str, str]:
    return {}


async def an_outbox(_world: World) -> dict[str, str]:
    """Two tasks of alice's: of the first something in every state, of the second all pending."""
    os.environ.pop("PUSHKIT_DATABASE", None)
    push = PushSender(issuer=ISSUER, keys="keys.json", database="outbox.db")
    await push.open()
    config = {"url": "https://client.example.com/a2a/push", "token": "abc"}
    found = {}
    for task in ("task-1", "task-2"):
        await push.subscribe(task, config, version="1.0", owner="alice")
        made = [await push.notify(completed(task)) for _ in range(6)]
        found[task] = [each.deliveries[0] for each in made]
    await push.close()
    first = found["task-1"]
    with contextlib.closing(sqlite3.connect("outbox.db")) as database, database:
        for delivery, state, error in zip(
            first,
            ("dead", "dead", "delivered", "delivered", "cancelled", "pending"),
            ("status_500", "timeout", None, None, None, None),
            strict=True,
        ):
            database.execute(
                "UPDATE pushkit_deliveries SET state = ?, last_error = ?,"
                " finished_at = CASE WHEN ? = 'pending' THEN NULL ELSE notified_at END,"
                " cancelled_by = CASE WHEN ? = 'cancelled' THEN 'operator' END WHERE id = ?",
                (state, error, state, state, delivery.id),
            )
    database.close()
    return {
        "remove sub_…": f"remove {found['task-2'][0].subscription_id}",
        "sub_…": first[0].subscription_id,
        "dlv_…": first[0].id,
    }


async def a_key_of_ones_own(_world: World) -> dict[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    Path("own.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return {"KID": load_key_ring("keys.json").active_key(datetime.now(UTC)).kid}


async def a_worker(world: World) -> dict[str, str]:
    await an_outbox(world)
    options = f"--database outbox.db --keys keys.json --issuer {ISSUER}"
    return {"…": options, "/usr/local/bin/page": "/bin/true"}


async def an_inbox(_world: World) -> dict[str, str]:
    await asyncio.to_thread(lambda: asyncio.run(fill(Path("inbox.db"))))
    return {"17": "1", **await a_receiver(_world)}


async def a_receiver(_world: World) -> dict[str, str]:
    """A configuration, and what it names."""
    Path("receiver.toml").write_text(
        'url = "https://client.example.com"\nlisten = "127.0.0.1:9000"\ndatabase = "inbox.db"\n'
        '[[senders]]\nname = "agent"\nissuer = "https://agent.example.com"\ntasks = "any"\n'
        'tokens = ["abc"]\n'
        'jwks_url = "https://agent.example.com/.well-known/jwks.json"\n'
        '[[callbacks]]\ncall = "handlers:completed"\n'
    )
    Path("handlers.py").write_text("async def completed(notification): ...\n")
    return {}


async def an_agent(world: World) -> dict[str, str]:
    return {"postgresql://pushkit@db/agent": "outbox.db", **await an_outbox(world)}


async def both(world: World) -> dict[str, str]:
    await an_inbox(world)
    return await an_outbox(world)


async def a_pinned_card(_world: World) -> dict[str, str]:
    Path("cards.toml").write_text(
        f'[origins."{ISSUER}"]\njwks_urls = ["{ISSUER}/.well-known/jwks.json"]\n'
    )
    return {}


async def no_keys(_world: World) -> dict[str, str]:
    for name in ("keys.json", "jwks.json", "agent-card.json"):
        Path(name).unlink()
    return {}


SCENES: dict[str, Callable[[World], Awaitable[dict[str, str]]]] = {
    **dict.fromkeys(SESSIONS, no_keys),
    "docs/dashboard.md": both,
    "docs/extensions/mailbox.md": no_keys,
    "docs/how-to/alerts.md": a_worker,
    "docs/how-to/at-3-a-m.md": both,
    "docs/how-to/backup.md": a_worker,
    "docs/how-to/monitor.md": a_worker,
    "docs/keys.md": a_key_of_ones_own,
    "docs/migrations.md": both,
    "docs/outbox.md": an_outbox,
    "docs/receiver-storage.md": an_inbox,
    "docs/receiver-trust.md": a_pinned_card,
    "docs/receiving.md": a_receiver,
    "docs/secrets.md": an_outbox,
    "docs/sending.md": an_agent,
    "docs/terminal.md": a_receiver,
}

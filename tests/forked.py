"""Our commands as processes of their own, without the second that each would take to import us.

`forked("receiver.cli")` begins a command line that does as `python -m receiver.cli` does. It asks
a process that has imported everything to fork; the fork takes over the arguments, the environment,
the folder and the three standard files, and runs the module anew. Whoever is started by the line
stands for it: hands on signals, and ends as it ends; if it is killed, so is the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["RUN", "forked"]

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# These run anew in each fork, as what `-m` names; what they import is there once and for all.
# Others may be run, too, and as quickly if they import no more.
RUN = (
    "pushkit.cli.main",
    "receiver.cli",
    "tests.contract.docs.world",
    "tests.verification.soak.agent_process",
    "tests.verification.soak.gateway_process",
)


def forked(module: str) -> list[str]:
    """Return how a command line begins that runs a module, as one of `RUN`."""
    return [sys.executable, "-I", "-S", __file__, _server(), module]


@cache
def _server() -> str:
    """Start what forks; it ends with this process."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="pushkit-forks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        server = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "tests.forked", str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        server.communicate()  # closes its standard input
        server.wait()

    atexit.register(end)
    return path


# --- what is started in the command's place -----------------------------------------------------


def _call(path: str, *arguments: str) -> None:
    # Before there is a fork, which may be heard of at once: what comes waits until it is there.
    came, handed = socket.socketpair()
    handed.setblocking(False)
    signal.set_wakeup_fd(handed.fileno())
    for number in HANDED_ON:
        signal.signal(number, lambda *_: None)  # it comes as an octet
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        asked = {"argv": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109  # costs nothing
        text = json.dumps(asked).encode()
        socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(text)
        fork = int.from_bytes(_read(server, 4), "big")
        while server not in select.select([server, came], [], [])[0]:
            for each in came.recv(64):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(fork, each)
        status = int.from_bytes(_read(server, 4), "big")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# --- what forks ---------------------------------------------------------------------------------


def _serve(listener: socket.socket) -> str:
    """Fork for each caller; return, in the fork, the module that is to run."""
    import gc

    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        keeper = os.fork()
        if keeper == 0:
            listener.close()
            return _keep(connection)
        connection.close()
        _bury()


def _bury() -> None:
    """Take note of the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _keep(connection: socket.socket) -> str:
    """Fork once more, and tell the caller how that ends; return, in the fork, what is to run."""

    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        asked = json.loads(_read(connection, int.from_bytes(head, "big")))
    except (EOFError, ValueError):  # killed before it had asked
        os._exit(0)
    running, end = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(running)
        connection.close()
        _take_over(asked, files)
        module: str = asked["argv"][0]
        return module
    for each in (*files, end):
        os.close(each)
    # A caller that is gone needs no status; what it stood for goes with it.
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(fork.to_bytes(4, "big"))
    ready, _, _ = select.select([running, connection.fileno()], [], [])
    if running not in ready:
        os.kill(fork, signal.SIGKILL)
    _, status = os.waitpid(fork, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(status.to_bytes(4, "big"))
    os._exit(0)


def _take_over(asked: dict[str, list[str] | dict[str, str] | str], files: list[int]) -> None:
    """Become what `python -m` would be."""
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    sys.stdin, sys.stdout, sys.stderr = (_standard(number) for number in range(3))
    folder, environment, argv = asked["folder"], asked["environment"], asked["argv"]
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    assert isinstance(argv, list)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [folder, *environment.get("PYTHONPATH", "").split(":")]
    sys.argv = argv


def _standard(number: int) -> TextIO:
    """Return a standard file, called as Python calls its own."""
    import io

    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, line_buffering=True)


def _main() -> None:
    # Who starts us may have tried `serve` in its own process, which then hears no SIGHUP.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    if not sys.argv[1].isdigit():
        return _call(*sys.argv[1:])
    import importlib
    import runpy

    # What the commands import when they are called, and the libraries that those import.
    names = [each.stem for each in (Path(__file__).parents[1] / "pushkit" / "cli").glob("*.py")]
    for name in (*RUN, *(f"pushkit.cli.{name}" for name in names), "aiohttp.web", "asyncpg"):
        importlib.import_module(name)
    module = _serve(socket.socket(fileno=int(sys.argv[1])))
    for each in RUN:
        del sys.modules[each]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return None


if __name__ == "__main__":
    _main()

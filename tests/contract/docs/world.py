"""What the pages speak of, on loopback: hosts with their names, and certificates that hold.

`python world.py COMMAND ARGUMENT…` runs one of our commands among them, or a program by its file,
as a process of its own.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import runpy
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__all__ = ["ADDRESSES", "lead"]

ADDRESSES = {"client.example.com": "93.184.216.34", "agent.example.com": "93.184.216.35"}


def lead(ports: dict[str, int], replace: Callable[[object, str, Any], None] = setattr) -> None:
    """Let names, and ports, lead to other ports on loopback, and everything else nowhere."""
    import aiodns

    names = {address: name for name, address in ADDRESSES.items()}
    selector_loop = asyncio.selector_events.BaseSelectorEventLoop
    connect, look_up, bind = selector_loop.sock_connect, socket.getaddrinfo, socket.socket.bind

    def placed(address: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(address, tuple):
            return address
        host, port, *_ = address
        if host in names:
            return ("127.0.0.1", ports[names[host]])
        if not ipaddress.ip_address(host).is_loopback:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not of this world")
        return (host, ports.get(str(port), port))

    async def sock_connect(loop: Any, sock: socket.socket, address: tuple[Any, ...]) -> None:
        await connect(loop, sock, placed(address))

    async def resolved(_: object, host: str, port: int = 0, **__: object) -> SimpleNamespace:
        if host not in ADDRESSES:
            raise aiodns.error.DNSError(1, "there is no such name in this world")
        address = (ADDRESSES[host].encode(), port)
        return SimpleNamespace(nodes=[SimpleNamespace(family=socket.AF_INET, addr=address)])

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        return look_up(ADDRESSES.get(host, host), *arguments, **options)

    def bind_placed(sock: socket.socket, address: tuple[Any, ...]) -> None:
        if isinstance(address, tuple) and address[0] in names:
            raise OSError(errno.EADDRNOTAVAIL, "not of this machine")
        bind(sock, placed(address))

    replace(selector_loop, "sock_connect", sock_connect)
    replace(socket.socket, "bind", bind_placed)
    replace(aiodns.DNSResolver, "getaddrinfo", resolved)
    replace(socket, "getaddrinfo", getaddrinfo)


if __name__ == "__main__":
    sys.path[0] = ""  # as with `python -m`
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its sockets would leave this world
    lead(json.loads(os.environ["WORLD"]))
    del sys.argv[0]
    if module := {"pushkit": "pushkit.cli.main", "receiver": "receiver.cli"}.get(sys.argv[0]):
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")

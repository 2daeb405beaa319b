"""The list of hostile URLs, and the DNS of whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.network import Names

__all__ = ["PUBLIC", "HostileUrl", "attackers_dns", "hostile_urls"]

_LIST = Path(__file__).parent / "vectors" / "hostile_urls.txt"

PUBLIC = "93.184.216.34"

# A name's answers, one set after another. The `example` of the list is a special-use name, which is
# refused before it is looked up: `.example.com` is what the address checks get to see.
_ANSWERS = {
    "loop.attacker.example": [["127.0.0.1"]],
    "mapped.attacker.example": [["::ffff:127.0.0.1"]],
    "zero.attacker.example": [["0.0.0.0"]],  # noqa: S104
    "rebind.attacker.example": [["127.0.0.1"], [PUBLIC], ["127.0.0.1"]],
    "compat.attacker.example": [["::127.0.0.1"]],
    "imds.attacker.example": [["169.254.169.254"]],
    "nat64.attacker.example": [["64:ff9b::a9fe:a9fe"]],
    "ula.attacker.example": [["fd00:ec2::254"]],
    "mixed.attacker.example": [[PUBLIC, "127.0.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "kubernetes": [["10.96.0.1"]],
    "host.docker.internal": [["172.17.0.1"]],
    "printer.local": [["192.168.1.9"]],
    "hooks.example.com": [["127.0.0.1"]],
    "example.com": [[PUBLIC]],
}


@dataclass(frozen=True)
class HostileUrl:
    """A line of the list."""

    url: str  # the URL, its escapes undone
    reason: str  # what is wrong with it

    @property
    def only_its_port_is_wrong(self) -> bool:
        """Whether the host is public: then only the rule on ports may refuse the URL."""
        return self.reason == "ssh port"

    def looked_up(self) -> str:
        """Return the URL with a name that is not refused before its lookup."""
        return self.url.replace("attacker.example", "attacker.example.com")


def hostile_urls(port: int) -> list[HostileUrl]:
    """Return the lines of the file, with a canary's port."""
    lines = [line for line in _LIST.read_text("utf-8").splitlines() if line.strip()]
    pairs = [line.split("\t") for line in lines if not line.startswith("#")]
    return [HostileUrl(_unescape(url).replace("{P}", str(port)), reason) for url, reason in pairs]


def attackers_dns(names: Names) -> None:
    """Give names the addresses of the list, from the first set."""
    for name, answers in _ANSWERS.items():
        names.says(name, *answers)
        names.says(name.replace("attacker.example", "attacker.example.com"), *answers)


def _unescape(text: str) -> str:
    # Only the file's own escapes: some of its lines have other non-ASCII characters.
    for code in (0x2460, 0x2461, 0x2466, 0xAD):
        text = text.replace(f"\\u{code:04x}", chr(code))
    return text.replace("\\\\", "\\")

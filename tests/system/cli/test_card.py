"""`pushkit card`, as a user calls it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pushkit.cards import canonicalize
from pushkit.cards.forms import CardForm
from tests.forked import forked
from tests.system.cli.conftest import Run, Webhook, environment
from tests.unit.pushkit.cards.vectors import FOLDER, load, served

ALLOW = ("--allow", "127.0.0.1:*")
VECTOR_KEY = "vector-key.pem"


@pytest.fixture
def card(pushkit_command: Run, jwks: Path) -> Path:
    """A card on disk, with `keys.json`, `jwks.json` and `agent.pem` beside it."""
    assert pushkit_command("keys", "export", "--format", "pem", "--out", "agent.pem").status == 0
    path = jwks.with_name("card.json")
    path.write_bytes(json.dumps(load("cards_v10")["c21_spec_85_sample"]).encode())
    return path


@pytest.fixture
def signed(pushkit_command: Run, card: Path) -> Path:
    """The card, signed."""
    assert pushkit_command("card", "sign", str(card), "--out", "signed.json").status == 0
    return card.with_name("signed.json")


def vector(folder: Path, name: str, card: str) -> str:
    """Put a card that an SDK signed on disk, and the public key beside it."""
    (folder / VECTOR_KEY).write_bytes((FOLDER / "es256_public.pem").read_bytes())
    path = folder / f"{card}.json"
    path.write_bytes(json.dumps(served(name)[card]).encode())
    return str(path)


def test_signed_verified_tampered_refused(pushkit_command: Run, signed: Path) -> None:
    for key in ("jwks.json", "agent.pem"):
        ran = pushkit_command("card", "verify", str(signed), "--key", key)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith("verified     GeoSpatial Route Planner Agent")
        assert "/securitySchemes       yes" in ran.out
    signed.write_text(signed.read_text().replace("openIdConnectUrl", "openIdConnectURL"))
    ran = pushkit_command("card", "verify", str(signed), "--key", "jwks.json")
    assert ran.status == 1
    assert ran.out.startswith("REFUSED      ")
    assert "it is invalid" in ran.out


def test_a_tampered_card_and_a_wrong_key_are_told_apart(pushkit_command: Run, signed: Path) -> None:
    assert pushkit_command("keys", "new", "other.json").status == 0
    export = ("keys", "export", "--keys", "other.json", "--format", "pem", "--out", "other.pem")
    assert pushkit_command(*export).status == 0
    wrong_key = pushkit_command("card", "verify", str(signed), "--key", "other.pem")
    assert "it was signed with another key" in wrong_key.out
    signed.write_text(signed.read_text().replace("GeoSpatial", "Evil"))
    tampered = pushkit_command("card", "verify", str(signed), "--key", "agent.pem")
    assert "the card was changed after it was signed" in tampered.out
    assert "signed by another key under this `kid`" in tampered.out
    assert "in a form that is not known" not in tampered.out


def test_a_card_from_standard_input(pushkit_command: Run, signed: Path) -> None:
    content = signed.read_bytes()
    ran = pushkit_command("card", "verify", "-", "--key", "jwks.json", stdin=content)
    assert ran.status == 0


def test_the_bytes_that_are_signed(pushkit_command: Run, card: Path) -> None:
    document = load("cards_v10")["c21_spec_85_sample"]
    for form in CardForm:
        ran = pushkit_command("card", "canonicalize", str(card), "--form", form.value)
        assert ran.status == 0
        assert ran.out == canonicalize(document, form).payload.decode()


def test_signing_tells_what_will_not_be_covered(pushkit_command: Run, card: Path) -> None:
    card.write_text(json.dumps({**json.loads(card.read_text()), "url": "https://a.example.com"}))
    ran = pushkit_command("card", "sign", str(card))
    assert ran.status == 0
    assert "warning: spec does not cover /url" in ran.err
    assert json.loads(ran.out)["signatures"]


def test_a_card_of_0_3_that_is_signed_verifies(pushkit_command: Run, card: Path) -> None:
    card.write_text(json.dumps(load("cards_v03")["v01_minimal"]))
    ran = pushkit_command("card", "sign", str(card), "--out", "signed.json")
    assert (ran.status, "add " in ran.err) == (0, False)
    assert pushkit_command("card", "verify", "signed.json", "--key", "agent.pem").status == 0


def test_signing_names_a_member_of_a_wrong_type(pushkit_command: Run, card: Path) -> None:
    card.write_text(json.dumps({**json.loads(card.read_text()), "capabilities": []}))
    ran = pushkit_command("card", "sign", str(card))
    assert ran.status == 1
    assert ran.error == "the card: /capabilities: found an array, expected an object"


def test_signing_twice_leaves_one_signature(pushkit_command: Run, signed: Path) -> None:
    assert pushkit_command("card", "sign", str(signed), "--out", "again.json").status == 0
    again = json.loads(signed.with_name("again.json").read_text())
    assert len(again["signatures"]) == 1


def test_signing_for_every_sdk(pushkit_command: Run, card: Path) -> None:
    url = "https://agent.example.com/.well-known/jwks.json"
    ran = pushkit_command("card", "sign", str(card), "--every-sdk", "--jku", url)
    assert len(json.loads(ran.out)["signatures"]) == 2
    assert pushkit_command("card", "sign", str(card), "--every-sdk", "--form", "raw").status == 2


def test_a_refusal_names_the_fields(pushkit_command: Run, own_folder: Path) -> None:
    path = Path(vector(own_folder, "signed_py_1.3.0", "c15_v03_interface_compat"))
    ran = pushkit_command("card", "verify", str(path), "--key", VECTOR_KEY)
    assert ran.status == 0
    assert "/url                  yes      a copy for A2A 0.3 of what members of 1.0 say" in ran.out
    copies = ("url", "preferredTransport", "protocolVersion")
    path.write_text(json.dumps({**json.loads(path.read_text()), **dict.fromkeys(copies, "x")}))
    ran = pushkit_command("card", "verify", str(path), "--key", VECTOR_KEY)
    assert ran.status == 1
    assert "does not cover /preferredTransport, /protocolVersion, /url" in ran.out
    assert (
        "/url                  NO       not a field of this version, but other versions read it"
        in ran.out
    )
    admit = ("--admit", "sdk")
    assert pushkit_command("card", "verify", str(path), "--key", VECTOR_KEY, *admit).status == 0


def test_json_for_programs(pushkit_command: Run, own_folder: Path) -> None:
    path = vector(own_folder, "signed_js_1.0.1", "c17_oauth_scopes")
    ran = pushkit_command("card", "verify", path, "--key", VECTOR_KEY, "--json")
    assert ran.status == 1
    found: dict[str, Any] = json.loads(ran.out)
    assert found["verified"] is False
    assert found["signatures"][0]["form"] == "sdk-without-security-schemes"
    assert found["signatures"][0]["decision"] == "form_not_admitted"
    assert found["uncovered"] == [
        {
            "path": "/securitySchemes",
            "gap": "content",
            "reason": "this form leaves out every security scheme",
        }
    ]
    assert {"path": "/name", "covered": "whole", "reason": ""} in found["fields"]


def test_a_card_and_its_keys_by_url(pushkit_command: Run, signed: Path, webhook: Webhook) -> None:
    webhook.documents = {
        "/.well-known/agent-card.json": signed.read_bytes(),
        "/.well-known/jwks.json": signed.with_name("jwks.json").read_bytes(),
    }
    jwks = ("--jwks", f"{webhook.origin}/.well-known/jwks.json")
    ran = pushkit_command("card", "verify", webhook.origin, *jwks)
    assert (ran.status, ran.err) == (0, "")
    assert f"under {webhook.origin}/.well-known/jwks.json" in ran.out
    loud = webhook.origin.replace("http", "HTTP")
    assert pushkit_command("card", "verify", loud, *jwks, *ALLOW).out == ran.out
    local = pushkit_command("card", "verify", str(signed), *jwks, *ALLOW)
    assert local.status == 0
    for target in (str(signed), webhook.origin):
        assert pushkit_command("card", "verify", target, "--jwks", "jwks.json", *ALLOW).status == 0
    gone = pushkit_command(
        "card", "verify", str(signed), "--jwks", f"{webhook.origin}/gone", *ALLOW
    )
    assert gone.status == 1
    assert "could not be fetched" in gone.out


def test_many_cards_by_a_trust_file(pushkit_command: Run, signed: Path, webhook: Webhook) -> None:
    webhook.documents = {
        "/.well-known/agent-card.json": signed.read_bytes(),
        "/evil": signed.read_bytes().replace(b"GeoSpatial", b"Evil"),
    }
    trust = signed.with_name("cards.toml")
    trust.write_text(f'[[origins."{webhook.origin}".keys]]\nfile = "agent.pem"\n')
    urls = (webhook.origin, f"{webhook.origin}/evil", f"{webhook.origin}/gone")
    ran = pushkit_command("card", "verify", *urls, "--trust", str(trust), *ALLOW)
    assert ran.status == 1
    assert "3 cards: 1 verified, 1 refused, 1 failed" in ran.out
    ran = pushkit_command("card", "verify", *urls, "--trust", str(trust), *ALLOW, "--json")
    assert json.loads(ran.out)["counts"]["verified"] == 1
    one = pushkit_command("card", "verify", webhook.origin, "--trust", str(trust), *ALLOW)
    assert one.status == 0
    file = ("card", "verify", str(signed), "--trust", str(trust), *ALLOW)
    assert pushkit_command(*file).status == 2
    assert pushkit_command(*file, "--origin", webhook.origin).status == 0
    elsewhere = pushkit_command(*file, "--origin", "https://other.example.com")
    assert elsewhere.status == 1
    told = f"no keys are trusted for https://other.example.com:443, only for {webhook.origin}"
    assert told in elsewhere.err


def test_what_a_card_says_about_itself(pushkit_command: Run, signed: Path) -> None:
    ran = pushkit_command("card", "inspect", str(signed))
    assert ran.status == 0
    assert "not verified" in ran.out
    assert "signature 1  alg ES256, kid " in ran.out
    found = json.loads(pushkit_command("card", "inspect", str(signed), "--json").out)
    assert found["signatures"][0]["typ"] == "JOSE"
    assert found["forms"]["raw"]["uncovered"] == []


def test_what_a_card_says_cannot_move_the_cursor(pushkit_command: Run, card: Path) -> None:
    evil = {
        "name": "\x1b[2J\x1b]0;owned\x07\nverified     forged",
        "x\x1b[31m": 1,
        "signatures": [{"protected": "?", "signature": "\x1b"}, 5],
    }
    card.write_text(json.dumps(evil))
    commands = [("inspect", str(card)), ("verify", str(card), "--key", "jwks.json")]
    odd = card.with_name("odd.json")
    odd.write_text(json.dumps({**load("cards_v10")["c01_minimal"], "x\x1b[31m": 1}))
    signed = pushkit_command("card", "sign", str(odd), "--out", "odd-signed.json")
    assert "\x1b" not in signed.out + signed.err
    commands.append(("verify", str(card.with_name("odd-signed.json")), "--key", "jwks.json"))
    for command in commands:
        ran = pushkit_command("card", *command)
        assert ran.out
        assert "\x1b" not in ran.out + ran.err
        assert "\nverified     forged" not in ran.out


@pytest.mark.parametrize("no_colour", [False, True])
@pytest.mark.slow
def test_colour_where_the_terminal_has_it(
    pushkit_command: Run, signed: Path, no_colour: bool
) -> None:
    piped = pushkit_command("card", "verify", str(signed), "--key", "jwks.json")
    assert "\x1b" not in piped.out
    command = [*forked("pushkit.cli.main"), "card", "verify", str(signed)]
    ours, theirs = pty.openpty()
    done = subprocess.run(  # noqa: S603 - ourselves
        [*command, "--key", str(signed.with_name("jwks.json"))],
        stdout=theirs,
        env=environment(**({"NO_COLOR": "1"} if no_colour else {})),
        check=True,
    )
    os.close(theirs)
    out = os.read(ours, 65536)
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[32mverified" in out) is not no_colour


# --- receiver pin --------------------------------------------------------------------------------

CARD_PATH, JWKS_PATH = "/.well-known/agent-card.json", "/.well-known/jwks.json"


@pytest.fixture
def agent(webhook: Webhook, pushkit_command: Run, card: Path) -> Webhook:
    """An agent that serves its card, signed, and the keys; `cards.toml` trusts it."""
    jku = f"{webhook.origin}{JWKS_PATH}"
    assert pushkit_command("card", "sign", str(card), "--jku", jku, "--out", "s.json").status == 0
    webhook.documents[CARD_PATH] = card.with_name("s.json").read_bytes()
    webhook.documents[JWKS_PATH] = card.with_name("jwks.json").read_bytes()
    trust = f'[origins."{webhook.origin}"]\njwks_urls = ["{jku}"]\n'
    card.with_name("cards.toml").write_text(trust)
    return webhook


def test_a_verified_card_becomes_a_trusted_sender(
    receiver_command: Run, agent: Webhook, own_folder: Path
) -> None:
    options = ("--trust", "cards.toml", "--save", "agent.json")
    ran = receiver_command("pin", agent.origin, *options)
    assert (ran.status, ran.err) == (0, "")
    [sender] = tomllib.loads(ran.out)["senders"]
    assert sender == {
        "name": "agent",
        "issuer": agent.origin,
        "jwks_url": f"{agent.origin}{JWKS_PATH}",
        "card": "agent.json",
    }
    start = 'url = "https://client.example.com"\nlisten = "127.0.0.1:1"\n'
    own_folder.joinpath("receiver.toml").write_text(f"{start}\n{ran.out}")
    checked = receiver_command("check")
    assert checked.status == 0
    assert "agent: 1 key\n" in checked.out


def test_a_pinned_card_replaces_a_card_alone(
    receiver_command: Run, agent: Webhook, own_folder: Path
) -> None:
    pin = ("pin", agent.origin, "--trust", "cards.toml", "--allow", "127.0.0.1:*", "--save")
    assert receiver_command(*pin, "s.json").status == 0
    before = (own_folder / "keys.json").read_bytes()
    ran = receiver_command(*pin, "keys.json")
    assert ran.error.startswith("keys.json: found a file with private keys, expected an agent card")
    assert (own_folder / "keys.json").read_bytes() == before


def test_a_sender_may_have_any_name(receiver_command: Run, agent: Webhook) -> None:
    name = "agent é 😀 \x7f"
    options = ("--trust", "cards.toml", "--name", name, "--allow", "127.0.0.1:*")
    [sender] = tomllib.loads(receiver_command("pin", agent.origin, *options).out)["senders"]
    assert sender["name"] == name


def test_a_card_that_was_changed_pins_nothing(receiver_command: Run, agent: Webhook) -> None:
    document = json.loads(agent.documents[CARD_PATH])
    document["name"] = "Another agent"
    agent.documents[CARD_PATH] = json.dumps(document).encode()
    ran = receiver_command("pin", agent.origin, "--trust", "cards.toml", "--allow", "127.0.0.1:*")
    assert (ran.status, ran.out) == (1, "")
    assert "it is invalid under the trusted key with its `kid`" in ran.error


def test_a_card_under_a_pinned_key_alone_names_no_jwk_set(
    receiver_command: Run, agent: Webhook, own_folder: Path
) -> None:
    trust = f'[[origins."{agent.origin}".keys]]\nfile = "agent.pem"\n'
    own_folder.joinpath("cards.toml").write_text(trust)
    ran = receiver_command("pin", agent.origin, "--trust", "cards.toml", "--allow", "127.0.0.1:*")
    assert (ran.status, ran.out) == (1, "")
    assert "or their JWK Set in a file (--jwks FILE)" in ran.error


def test_named_keys_pin_as_a_trust_file_does(receiver_command: Run, agent: Webhook) -> None:
    url = f"{agent.origin}{JWKS_PATH}"
    pin = ("pin", agent.origin.upper())
    for options, name, value in (
        (("--jwks", url), "jwks_url", url),
        (("--jwks", "jwks.json"), "jwks_file", "jwks.json"),
        (("--key", "agent.pem", "--jwks", "jwks.json"), "jwks_file", "jwks.json"),
    ):
        ran = receiver_command(*pin, *options, *ALLOW)
        assert ran.status == 0
        [sender] = tomllib.loads(ran.out)["senders"]
        assert sender[name] == value
        assert len(sender) == 3
    assert "(--jwks FILE)" in receiver_command(*pin, "--key", "agent.pem", *ALLOW).error
    assert receiver_command(*pin, *ALLOW).status == 2
    assert receiver_command(*pin, "--trust", "cards.toml", "--jwks", url).status == 2


def test_a_card_that_only_an_admitted_form_covers_is_pinned_with_a_warning(
    receiver_command: Run, pushkit_command: Run, agent: Webhook, card: Path
) -> None:
    forms = ("--form", "sdk-without-security-schemes")
    assert pushkit_command("card", "sign", str(card), *forms, "--out", "s.json").status == 0
    agent.documents[CARD_PATH] = card.with_name("s.json").read_bytes()
    pin = ("pin", agent.origin, "--jwks", "jwks.json", *ALLOW)
    assert "not admitted" in receiver_command(*pin).error
    admitted = receiver_command(*pin, "--admit", "sdk-without-security-schemes")
    assert admitted.status == 0
    assert "not covered: /securitySchemes" in admitted.err

"""Changes before signing: of the key, times, audience, ids and claims, and of their encoding."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from tests.verification.soak.fuzzing.making import TOKEN_HEADERS, Draft, Request
from tests.verification.soak.fuzzing.parties import HTTP, JWT, parties

STRANGERS: dict[Algorithm, SigningKey] = {}

# --- who signs ----------------------------------------------------------------------------------


def stranger(algorithm: Algorithm) -> SigningKey:
    return STRANGERS.setdefault(algorithm, generate_key(algorithm))


def by_a_stranger(draft: Draft, chance: Random) -> None:
    assert draft.key is not None
    claimed, draft.key = draft.key.kid, stranger(draft.key.algorithm)
    _name_key(draft, chance.choice([claimed, draft.key.kid, None]))


def by_another_party(draft: Draft, chance: Random) -> None:
    assert draft.key is not None
    claimed = draft.key.kid
    others = [key for party in parties() if party is not draft.party for key in party.keys]
    draft.key = chance.choice(others)
    _name_key(draft, chance.choice([claimed, draft.key.kid]))
    other = next(party for party in parties() if draft.key.kid in party.key_ids)
    draft.claims["iss"] = chance.choice([draft.party.issuer, other.issuer])


def _name_key(draft: Draft, kid: str | None) -> None:
    draft.header["kid"] = draft.parameters["keyid"] = kid


def by_no_key(draft: Draft, chance: Random) -> None:
    draft.how = chance.choice(["hmac", "none", "zeros"])
    if JWT in draft.party.signs:
        named = {"hmac": "HS256", "none": "none"}.get(draft.how)
        draft.header.update({"alg": named} if named else {})


def by_another_key_of_its_own(draft: Draft, chance: Random) -> None:
    draft.key = chance.choice(draft.party.keys)


def by_another_algorithm(draft: Draft, chance: Random) -> None:
    assert draft.key is not None
    rsa = {Algorithm.RS256: Algorithm.PS256, Algorithm.PS256: Algorithm.RS256}
    if draft.key.algorithm in rsa and chance.random() < 0.7:
        draft.algorithm = rsa[draft.key.algorithm]
    else:
        draft.header["alg"] = chance.choice([*Algorithm, "es256", "HS512", "", 5])
    draft.parameters["alg"] = chance.choice(["ed25519", "rsa-pss-sha512", "hmac-sha256", ""])


def by_another_secret(draft: Draft, chance: Random) -> None:
    draft.secret = chance.choice([party.secret for party in parties() if party.secret])


# --- what the JWT says --------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, True, 0, -1, 1, 1.5, 2**53, 2**63, 1e308, "", "A", "a.b", "1767268800", [], {}),
    *([None], ["A"], {"a": 1}, "\x00", "é", "\ud800"[:0], "x" * 300),
]
CLAIMS = [
    "iss",
    "aud",
    "iat",
    "exp",
    "nbf",
    "jti",
    "taskId",
    "configId",
    "seq",
    "request_body_sha256",
]
MEMBERS = ["alg", "kid", "typ", "crit", "b64", "jku", "jwk", "x5c", "zip", "cty"]


def odd_claim(draft: Draft, chance: Random) -> None:
    draft.claims[chance.choice(CLAIMS)] = chance.choice(ODD)


def odd_header_member(draft: Draft, chance: Random) -> None:
    values = [*ODD, "none", "JWT", "jwt", "JOSE", "https://evil.example.com/jwks.json", ["exp"]]
    draft.header[chance.choice(MEMBERS)] = chance.choice(values)


def more_claims(draft: Draft, chance: Random) -> None:
    name = chance.choice(["nbf", "sub", "x", "Iss", "AUD"])
    draft.claims[name] = chance.choice([0, draft.at] if name == "nbf" else ODD)


def other_spelling_of_the_header(draft: Draft, chance: Random) -> None:
    draft.header["typ"] = chance.choice(["JWT", "jwt", None])
    if draft.key is not None and draft.key.algorithm is Algorithm.EDDSA:
        draft.header["alg"] = chance.choice(["EdDSA", "Ed25519"])


NUMBERS = [
    "1e400",
    "1" * 400,
    "1" * 5000,
    "NaN",
    "Infinity",
    "-0",
    "1.7672688e9",
    "٣",
    "01",
    "1E+9",
]


def raw_json(draft: Draft, chance: Random) -> None:
    """Write a payload that no JSON library writes."""

    def raw(payload: bytes) -> bytes:
        name = chance.choice(CLAIMS)
        value = json.dumps(json.loads(payload).get(name))
        odd = chance.choice([value, *NUMBERS, '"other"', "null"])
        twice = f'{{"{name}": {odd}, '.encode() + payload.lstrip()[1:]
        wholly = [
            b"[1]",
            b"",
            b"null",
            b"[" * 3000,
            b'"' + payload,
            payload + b"{}",
            b"\xff" + payload,
        ]
        number = payload.replace(value.encode(), chance.choice(NUMBERS).encode(), 1)
        escaped = payload.replace(b'"iat"', b'"i\\u0061t": 5, "iat"')
        with_bom = b"\xef\xbb\xbf" + payload
        return chance.choice([twice, twice, number, escaped, with_bom, chance.choice(wholly)])

    draft.raw_payload = raw


def raw_header(draft: Draft, chance: Random) -> None:
    assert draft.key is not None
    alg, kid = draft.key.algorithm.value, draft.key.kid
    plain = f'{{"alg": "{alg}", "kid": "{kid}"}}'
    other = chance.choice(["none", "HS256", alg])
    twice = f'{{"alg": "{other}", "alg": "{alg}", "kid": "{kid}"}}'
    kids = f'{{"alg": "{alg}", "kid": "{kid}", "kid": "{stranger(draft.key.algorithm).kid}"}}'
    texts = [twice, kids, f"{plain} ", f" {plain}\n", f"[{plain}]", f"{plain},", plain[:-1], "null"]
    draft.raw_header = chance.choice(texts).encode()


def other_base64url(draft: Draft, chance: Random) -> None:
    """Sign segments in a spelling that is not the one."""
    at_segment, seen = chance.randrange(3), list[str]()

    def trailing_bits(segment: str) -> str:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        last = letters.index(segment[-1]) if segment else 0
        return segment[:-1] + letters[last ^ 1] if len(segment) % 4 else segment + "="

    def padded(segment: str) -> str:
        return segment + "=" * (-len(segment) % 4)

    def with_other_letters(segment: str) -> str:
        return segment.replace("-", "+").replace("_", "/")

    spelt = chance.choice([padded, with_other_letters, trailing_bits])

    def spell(segment: str) -> str:
        seen.append(segment)
        return spelt(segment) if len(seen) - 1 == at_segment else segment

    draft.spell = spell


# --- when, for whom, about what -----------------------------------------------------------------


def at_another_time(draft: Draft, chance: Random) -> None:
    """Sign it outside the window, or so that it ends early; never within seconds of a limit."""
    shift = chance.choice([-86400, -3600, -420, -330, 330, 420, 3600])
    draft.at += shift
    draft.claims["exp"] = draft.at + chance.choice([300, 90000])
    draft.parameters["expires"] = draft.at + chance.choice([300, 90000])
    if draft.value("webhook-timestamp"):
        draft.put("webhook-timestamp", str(draft.at))


def expired(draft: Draft, chance: Random) -> None:
    ended = draft.at - chance.choice([70, 100, 200])
    draft.claims["exp"] = draft.parameters["expires"] = ended


def within_the_window(draft: Draft, chance: Random) -> None:
    draft.at += chance.choice([-280, -100, 100, 280])
    if draft.value("webhook-timestamp"):
        draft.put("webhook-timestamp", str(draft.at))


def before_its_time(draft: Draft, chance: Random) -> None:
    draft.claims["nbf"] = draft.at + chance.choice([330, 3600, 90000])


def for_another_webhook(draft: Draft, chance: Random) -> None:
    other = chance.choice([party.url for party in parties() if party.path != draft.party.path])
    choices = [other, f"{draft.url}/", draft.url[:-1], draft.url.upper(), f"{draft.url}?x=1"]
    draft.url = chance.choice([*choices, f"http{draft.url[5:]}", "https://evil.example.com/"])


def with_a_query(draft: Draft, chance: Random) -> None:
    """Post to the webhook with a query, and sign it, or not: the JWT may leave it out."""
    draft.target = f"{draft.target}?tenant=1"
    if HTTP in draft.party.signs or chance.random() < 0.5:
        draft.url = f"{draft.url}?tenant=1"


def with_another_query(draft: Draft, chance: Random) -> None:
    draft.target = f"{draft.target}?tenant={chance.choice('12')}"
    draft.url = f"{draft.url}?tenant=3"


def among_several_audiences(draft: Draft, chance: Random) -> None:
    draft.claims["aud"] = ["https://other.example.com/", draft.url]
    chance.shuffle(draft.claims["aud"])


def of_another_issuer(draft: Draft, chance: Random) -> None:
    others = [party.issuer for party in parties() if party is not draft.party]
    odd = [f"{draft.party.issuer}/", draft.party.issuer.upper(), "https://evil.example.com"]
    draft.claims["iss"] = chance.choice([*others, *odd])


def another_id_beside(draft: Draft, chance: Random) -> None:
    """Let the ids differ: that of the JWT, and that of a header, signed by others or unsigned."""
    other = chance.choice(["another-id", f"{draft.number}x", "a.b", f"{draft.number}.1", ""])
    draft.put("webhook-id", other)


def about_another_task(draft: Draft, chance: Random) -> None:
    draft.claims["taskId"] = chance.choice(["another-task", f"{draft.task} ", draft.task.upper()])


# --- what HTTP message signatures cover ---------------------------------------------------------


def covering_less(draft: Draft, chance: Random) -> None:
    names = ["@method", "@target-uri", "content-type", "content-digest", "webhook-id"]
    draft.uncovered = frozenset(chance.sample([*names, *TOKEN_HEADERS[:2]], chance.randint(1, 3)))


def another_method(draft: Draft, chance: Random) -> None:
    draft.method = chance.choice(["PUT", "post", "GET", ""])


def odd_parameter(draft: Draft, chance: Random) -> None:
    name = chance.choice(["created", "expires", "keyid", "alg", "tag", "nonce", "b"])
    draft.parameters[name] = chance.choice([None, "", "x", "a2a", 0, -1, 10**14, "a2a-push "])


def another_digest(draft: Draft, chance: Random) -> None:
    text = chance.choice(["md5=:AA==:", "sha-256=:AAAA:", "sha-256=x", "sha-512=:AA==:, a=1", "("])
    draft.after.append(lambda request: request.put("Content-Digest", text))


def raw_signature_fields(draft: Draft, chance: Random) -> None:
    """Let the dictionaries be none, or name a label twice, or name what others signed."""
    name = chance.choice(["Signature-Input", "Signature"])
    twice = chance.random() < 0.4
    text = chance.choice(["a2a", "a2a=(", "a2a=()", "sig1=:AAAA:", 'a2a=("@method";req)', "é", ""])

    def change(request: Request) -> None:
        found = ", ".join(request.all(name))
        first = chance.random() < 0.5
        both = f"{text}, {found}" if first else f"{found}, {text}"
        request.put(name, f"{found}, {found}" if twice else both)

    draft.after.append(change)


def signed_by_others_too(draft: Draft, chance: Random) -> None:
    """Let a proxy have signed it as well, for its own ends."""
    del chance
    other = 'proxy=("@method");created=1;keyid="p"'
    prepend = {"Signature-Input": other, "Signature": "proxy=:AAAA:"}

    def change(request: Request) -> None:
        for name, text in prepend.items():
            request.put(name, f"{text}, {', '.join(request.all(name))}")

    draft.after.append(change)


def another_webhook_version_beside(draft: Draft, chance: Random) -> None:
    more = chance.choice(["v2,AAAA", "v1,AAAA", "v1a,AAAA", "x"])

    def change(request: Request) -> None:
        request.put("webhook-signature", " ".join([more, *request.all("webhook-signature")]))

    draft.after.append(change)


def shifted_boundary(draft: Draft, chance: Random) -> None:
    """Let the same signed bytes mean another id, time and body."""

    def change(request: Request) -> None:
        stamp = "".join(request.all("webhook-timestamp"))
        if chance.random() < 0.5:
            request.put("webhook-id", f"{draft.number}.{stamp}")
        else:
            request.put("webhook-timestamp", f"{stamp}.{request.body[:1].decode('latin-1')}")
            request.body = request.body[1:]

    draft.after.append(change)

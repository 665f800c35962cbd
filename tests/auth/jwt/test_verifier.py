"""From the text of a token to a record; and what attackers try."""

import base64
import json
import time
from collections.abc import Callable

import pytest
from joserfc.jwk import RSAKey

from mist.auth.credentials import Credentials, Login
from mist.auth.jwt.claims import Expectations
from mist.auth.jwt.key_set import KeySet, Source
from mist.auth.jwt.keys import Key
from mist.auth.jwt.verifier import Verifier, is_jwt
from mist.auth.local import LocalRegistry
from mist.auth.memory import MemoryStore
from mist.auth.registry import Registry
from mist.commands import Register
from mist.errors import RegistryUnavailable
from tests.auth.jwt.issuer import KEYS, SECRET, claims, forge_hmac, jwks, part, public, sign
from tests.auth.jwt.test_key_set import Pages

ALL = ("rsa", "other", "p256", "p384", "p521", "ed")
LOGIN = Login("ws", "192.0.2.1")


def registry() -> Registry:
    return LocalRegistry(MemoryStore())


async def verifier(
    *names: str,
    secret: bytes | None = None,
    expected: Expectations | None = None,
    clock: Callable[[], float] = time.time,
    of: Registry | None = None,
    text: bytes = b"",
) -> Verifier:
    sources = [Source("https://id.example", Pages(text or jwks(*names)))] if names or text else []
    secrets = [Key("", frozenset({"HS256"}), KEYS["secret"])] if secret else []
    keys = KeySet(sources, secrets)
    await keys.fetch()
    return Verifier(keys, Pages(b""), of or registry(), expected or Expectations(), clock)


@pytest.mark.parametrize("name", ALL)
async def test_a_signed_token_is_good(name: str) -> None:
    it = await verifier(*ALL)
    token = sign(key=name)
    await it.prepare(token, LOGIN)
    record = it.find(token, LOGIN)
    assert record is not None
    assert record.tags == {"room:1", ">room:1"}
    assert record.attributes.user == "marvin"
    assert record.expires == pytest.approx(time.time() + 600, abs=5)
    assert record.grant.permits(frozenset({"room:1"}))
    assert it.find(token, LOGIN) is record
    assert it.outcomes == {"accepted": 1}
    assert token not in repr(record)


@pytest.mark.parametrize("alg", ["RS384", "RS512", "PS256", "PS384", "PS512"])
async def test_an_rsa_key_has_several_algorithms(alg: str) -> None:
    assert (await verifier("rsa")).find(sign(alg=alg), LOGIN) is not None


async def test_ed25519_has_two_names() -> None:
    assert (await verifier("ed")).find(sign(key="ed", alg="Ed25519"), LOGIN) is not None


async def test_a_secret_verifies_hs256() -> None:
    it = await verifier(secret=SECRET)
    assert it.find(sign(key="secret"), LOGIN) is not None
    assert it.find(sign(key="secret", header={"kid": "any"}), LOGIN) is not None
    assert it.find(sign(key="secret", alg="HS512"), LOGIN) is None


def none(name: str) -> str:
    return f"{part({'alg': name, 'kid': 'rsa'})}.{part(claims())}."


def headed(header: bytes, signature: str = "AA") -> str:
    return f"{part(header)}.{part(claims())}.{signature}"


def embedded() -> str:
    """Signed with a key that the token brings along."""
    own = KEYS["other"]
    return sign(
        key="other",
        header={"kid": None, "jwk": own.as_dict(private=False), "alg": "PS256"},
        alg="PS256",
    )


def pem() -> bytes:
    key = KEYS["rsa"]
    assert isinstance(key, RSAKey)
    return key.as_pem(private=False)


def changed(place: int) -> str:
    parts = sign().split(".")
    raw = bytearray(base64.urlsafe_b64decode(parts[place] + "=="))
    raw[len(raw) // 2] ^= 1
    parts[place] = part(bytes(raw))
    return ".".join(parts)


def respelled() -> str:
    """The same signature, with a bit set that no byte has."""
    token = sign()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    found = token[:-1] + letters[letters.index(token[-1]) + 1]
    one, other = (base64.urlsafe_b64decode(each.split(".")[2] + "==") for each in (token, found))
    assert one == other
    return found


FORGED = {
    "none": lambda: none("none"),
    "None": lambda: none("None"),
    "nOnE": lambda: none("nOnE"),
    "no algorithm": lambda: none(""),
    "rsa key as secret, pem": lambda: forge_hmac(pem()),
    "rsa key as secret, n": lambda: forge_hmac(public("rsa")["n"].encode()),
    "rsa key as secret, jwk": lambda: forge_hmac(json.dumps(public("rsa")).encode()),
    "empty secret": lambda: forge_hmac(b""),
    "another key": lambda: sign(key="other", header={"kid": "rsa"}),
    "another key, no kid": lambda: sign(key="other", header={"kid": None}),
    "embedded jwk": embedded,
    "jku": lambda: sign(key="other", header={"kid": "other", "jku": "http://127.0.0.1:1/"}),
    "x5u": lambda: sign(key="other", header={"kid": None, "x5u": "http://127.0.0.1:1/"}),
    "crit": lambda: sign(header={"crit": ["exp"]}),
    "crit, empty": lambda: sign(header={"crit": []}),
    "b64": lambda: sign(header={"b64": False}),
    "kid is a path": lambda: sign(key="other", header={"kid": "../../dev/null"}),
    "kid is an object": lambda: sign(header={"kid": {"rsa": 1}}),
    "claims changed": lambda: changed(1),
    "signature changed": lambda: changed(2),
    "signature spelled in another way": respelled,
    "no signature": lambda: sign().rpartition(".")[0] + ".",
    "a signature of zeros": lambda: f"{sign().rpartition('.')[0]}.{part(bytes(256))}",
    "es256 of zeros": lambda: f"{sign(key='p256').rpartition('.')[0]}.{part(bytes(64))}",
    "two signatures": lambda: sign() + "." + sign().rpartition(".")[2],
    "too long": lambda: sign(claims(mist={"tags": ["room:1", "x" * 255]}, x="y" * 6_000)),
    "header nested": lambda: headed(b"{" + b'"a":{' * 800),
    "header an array": lambda: headed(b'["RS256"]'),
    "header not utf-8": lambda: headed(b'{"alg":"\xff"}'),
    "twice the alg": lambda: headed(b'{"alg":"RS256","alg":"none"}', ""),
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_token_is_refused(name: str) -> None:
    it = await verifier("rsa", "p256", secret=SECRET)
    token = FORGED[name]()
    await it.prepare(token, LOGIN)
    assert it.find(token, LOGIN) is None
    assert "accepted" not in it.outcomes
    assert it.outcomes.total() == 1
    assert it.explain(token, LOGIN).isprintable()


async def test_a_public_key_is_no_secret_even_where_there_is_one() -> None:
    it = await verifier("rsa", secret=SECRET)
    for secret in (pem(), public("rsa")["n"].encode(), b"\0" * 32):
        assert it.find(forge_hmac(secret), LOGIN) is None
    assert it.find(forge_hmac(SECRET), LOGIN) is not None


async def test_a_token_of_eight_kibibytes_is_good_and_a_longer_one_is_not() -> None:
    it = await verifier("ed")
    token = sign(claims(x=""), key="ed")
    fill = (8_192 - len(token)) * 3 // 4 - 3
    token = sign(claims(x="y" * fill), key="ed")
    assert 8_180 < len(token) <= 8_192
    assert it.find(token, LOGIN) is not None
    assert it.find(sign(claims(x="y" * (fill + 12)), key="ed"), LOGIN) is None


async def test_a_token_ends_with_its_time_and_has_a_leeway_where_clocks_differ() -> None:
    now = [time.time()]
    it = await verifier("rsa", clock=lambda: now[0])
    token = sign(claims(exp=int(now[0]) + 100))
    first = it.find(token, LOGIN)
    assert first is not None
    assert first.expires == int(now[0]) + 100
    now[0] += 101
    second = it.find(token, LOGIN)
    assert second is not None
    assert second.expires == first.expires + 30
    now[0] += 30
    assert it.find(token, LOGIN) is None
    assert "expired" in it.explain(token, LOGIN)


async def test_what_other_keys_verified_is_verified_again() -> None:
    pages = Pages(jwks("rsa"))
    keys = KeySet([Source("https://id.example", pages)])
    it = Verifier(keys, Pages(b""), registry(), Expectations(), time.time)
    await keys.fetch()
    token = sign()
    assert it.find(token, LOGIN) is not None
    assert it.find(sign(key="ed"), LOGIN) is None
    pages.text = jwks("ed")
    await keys.fetch()
    assert it.find(token, LOGIN) is None
    assert it.find(sign(key="ed"), LOGIN) is not None


async def test_before_the_keys_are_there_nobody_is_told_that_a_token_is_bad() -> None:
    keys = KeySet([Source("https://id.example", Pages(b""))])
    it = Verifier(keys, Pages(b""), registry(), Expectations(), time.time)
    await keys.fetch()
    with pytest.raises(RegistryUnavailable):
        await it.prepare(sign(), LOGIN)
    assert it.outcomes == {"unavailable": 1}


async def test_an_unknown_key_may_be_of_a_set_that_was_never_there() -> None:
    sources = [Source("https://a", Pages(jwks("rsa"))), Source("https://b", Pages(b""))]
    keys = KeySet(sources)
    it = Verifier(keys, Pages(b""), registry(), Expectations(), time.time)
    await keys.fetch()
    await it.prepare(sign(), LOGIN)
    with pytest.raises(RegistryUnavailable):
        await it.prepare(sign(key="ed"), LOGIN)
    assert it.outcomes == {"accepted": 1, "unavailable": 1}


async def test_two_tokens_of_a_user_have_one_id_and_those_of_two_users_have_two() -> None:
    it = await verifier("rsa")
    [one, two, three, four] = [
        it.find(sign(claims(**changes)), LOGIN)
        for changes in ({}, {"jti": "t2"}, {"sub": "ford"}, {"iss": "https://other.example"})
    ]
    assert one is not None and two is not None and three is not None and four is not None  # noqa: PT018
    assert one.id == two.id
    assert len({one.id, three.id, four.id}) == 3
    assert len(one.id) == 16


async def test_tokens_without_a_subject_are_of_nobody() -> None:
    it = await verifier("rsa")
    one = it.find(sign(claims(sub=None, jti="1")), LOGIN)
    two = it.find(sign(claims(sub=None, jti="2")), LOGIN)
    assert one is not None and two is not None  # noqa: PT018
    assert one.id != two.id
    assert one.attributes.user == ""


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mist.auth.jwt.verifier._MOST", 10)
    monkeypatch.setattr("mist.auth.jwt.verifier._MOST_REJECTED", 10)
    it = await verifier(secret=SECRET)
    good = [sign(claims(jti=str(n)), key="secret") for n in range(30)]
    for token in good:
        assert it.find(token, LOGIN) is not None
        assert it.find(token[:-4] + "AAAA", LOGIN) is None
    assert len(it._verified) == len(it._rejected) == 10
    assert it._bytes == sum(len(token) for token in good[-10:])
    assert it.find(good[0], LOGIN) is not None  # verified again


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (sign(), True),
        (none("none"), True),
        ("", False),
        ("token", False),
        ("a.b.c", False),
        ("e.b.c", False),
        ("eyJ.b", False),
        ("eyJ.b.c.d", False),
        ("eyJ.b.c d", False),
        ("eyJ..", False),
        ("eyJ.ä.c", False),
        ("eyJ.b.c\n", False),
    ],
)
def test_the_form_of_a_jwt(text: str, means: bool) -> None:
    assert is_jwt(text) is means


# beside registered tokens


async def test_registered_tokens_are_looked_up_where_the_text_is_no_jwt() -> None:
    of = registry()
    await of.execute([Register(text, frozenset({"a"})) for text in ("plain", "a.b.c")])
    it = await verifier("rsa", of=of)
    credentials = Credentials(of, it)
    for text in ("plain", "a.b.c"):
        await credentials.prepare(text, LOGIN)
        record = credentials.find(text, LOGIN)
        assert record is not None
        assert record.tags == {"a"}
    assert it.outcomes == {}
    await credentials.prepare(sign(), LOGIN)
    assert credentials.find(sign(), LOGIN) is not None
    assert credentials.find("nobody", LOGIN) is None
    assert credentials.explain("nobody", LOGIN) == "no such token"


async def test_without_authorities_there_is_only_the_registry() -> None:
    of = registry()
    credentials = Credentials(of)
    assert not credentials.issued
    await credentials.prepare(sign(), LOGIN)
    assert credentials.find(sign(), LOGIN) is None
    assert not credentials.accepts(sign())

"""What a poll asks, whatever it is sent."""

import json
from contextlib import suppress
from random import Random
from urllib.parse import quote, urlencode

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from mist.bus.inside import check_channel
from mist.http.bus_questions import MAX_CHANNELS, read_question
from mist.http.problems import Problem
from tests.http.bus.polls import FORM, PLAIN, SETTINGS, TOKEN, WITH_TOKEN
from tests.http.client import connect
from tests.servers import running

KINDS = ["application/json", "application/x-www-form-urlencoded; charset=UTF-8", "x", ""]
channels = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters=" ,*"), max_size=20
).map("/{}".format)
places = st.dictionaries(channels, st.integers(-(2**53) + 1, 2**53 - 1), max_size=20)


@given(places, st.integers(0, 2**53 - 1))
def test_json_and_forms_are_read_alike(asked, number):
    fields = {**asked, "__seq": number}
    for body, kind in (
        (json.dumps(fields).encode(), KINDS[0]),
        (urlencode(fields).encode(), KINDS[1]),
        ("&".join(f"{quote(name)}={value}" for name, value in fields.items()).encode(), KINDS[1]),
    ):
        question = read_question(body, kind)
        assert (question.places, question.number) == (asked, number)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    st.binary()
    | st.text().map(str.encode)
    | values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(channels | st.text(), values).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(channels | st.text(), st.text()).map(lambda value: urlencode(value).encode()),
    st.sampled_from(KINDS),
)
@example(b"%2Fa=" + b"9" * 5000, KINDS[1])
@example(b'{"/a":' + b"9" * 5000 + b"}", KINDS[0])
@example(b'{"/a":-0}', KINDS[0])
@example(b"/a=1;/b=2", KINDS[1])
@example('{"/\ud800":1}'.encode("utf-8", "surrogatepass"), KINDS[0])
@example(b'{"/\\ud800":1}', KINDS[0])
@example(b"%2F%ED%A0%80=1", KINDS[1])
def test_anything_else_is_a_question_or_a_problem_of_the_client_s(body, kind):
    question = None
    with suppress(Problem):
        question = read_question(body, kind)
    if question is None:
        return
    assert len(question.places) <= MAX_CHANNELS
    for name, place in question.places.items():
        assert check_channel(name) == name
        assert abs(place) < 2**53
    assert abs(question.number) < 2**53


def mutated(chance, body):
    body = bytearray(body)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(body) + 1)
        match chance.randrange(3):
            case 0:
                body[place:place] = bytes([chance.randrange(256)])
            case 1:
                del body[place : place + chance.randrange(1, 5)]
            case 2:
                body[place:place] = body[: chance.randrange(20)]
    return bytes(body)


@pytest.mark.parametrize("seed", range(3))
async def test_server_answers_whatever_is_sent(tmp_path, seed):
    chance = Random(seed)
    async with running(
        tmp_path, grants={TOKEN: {"/foo", "/bar"}}, failed_auth_delay=0.0, **SETTINGS
    ) as server:
        for number in range(10):
            await server.hub.store(frozenset({"/foo", "/bar"}), b"%d" % number)
        bodies = [b'{"/foo":3,"/bar":-1,"__seq":7}', b"%2Ffoo=3&%2Fbar=-2&__seq=7", b"{}", b""]
        seen = set()
        with trio.fail_after(60):
            for _ in range(150):
                async with connect(server) as client:
                    kind = FORM if chance.random() < 0.5 else {"Content-Type": "application/json"}
                    headers = {**WITH_TOKEN, **PLAIN, **kind}
                    name = chance.choice(["a", "%20", "%2F", "b%00", ".."])
                    path = f"/message-bus/{name}/poll?dlp=t"
                    body = mutated(chance, chance.choice(bodies))
                    response = await client.request("POST", path, headers, body)
                    seen.add(response.status)
                    response.json()
        assert {200, 400} <= seen <= {200, 400, 403, 404}

"""The members of a realm in PostgreSQL.

    member      each node's last beat
    lease       under which fence it was taken, when it ends, and whose it is
    question    what all nodes are asked
    answer      and what they say

Times are microseconds of the server's clock. Fences and numbers of questions are taken from that
clock, too, and above those before: so they ascend even where the server has lost the last of them.
It does where it crashes: tables other than that of heartbeats are not logged.

Until it is confirmed that a process has the log, beats stay as they were, and nobody is
forgotten or leaves: by them it is known who has to vote.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from mist.engine.contract import EngineUnavailable
from mist.engine.members import (
    ANSWERED,
    FORGOTTEN,
    MAX_QUESTIONS,
    OPEN,
    SHARED,
    BeatReply,
    Member,
    Members,
    Question,
    TooManyQuestions,
    check_answer,
    check_question,
    check_state,
)
from mist.engine.postgres.connection import Row
from mist.engine.postgres.function import Function, fill

__all__ = ["MEMBER_FUNCTIONS", "PostgresMembers"]

_SECOND: Final = 1_000_000  # microseconds
_NONSENSE: Final = "PostgreSQL has answered what it was not asked"

_BEAT: Final = fill("""
WITH beat AS (
  INSERT INTO {schema}.member
    SELECT $1, {NOW}, $2 FROM {schema}.head AS c WHERE c.run = {RUN}
    ON CONFLICT (name) DO UPDATE SET beat = EXCLUDED.beat, state = EXCLUDED.state
)
SELECT {NOW}, h."offset", q.number, q.body FROM {schema}.head AS h
  LEFT JOIN {schema}.question AS q ON {NOW} < q.asked + $3 ORDER BY q.number
""")

_FORGET: Final = fill("""
DELETE FROM {schema}.member USING {schema}.head AS h WHERE h.run = {RUN} AND {NOW} - beat > $1
""")

_ALL: Final = fill("""
SELECT name, greatest({NOW} - beat, 0), state FROM {schema}.member WHERE {NOW} - beat <= $1
""")

_LEAVE: Final = fill("""
DELETE FROM {schema}.member USING {schema}.head AS h WHERE h.run = {RUN} AND name = $1
""")

_TAKE: Final = fill("""
INSERT INTO {schema}.lease AS l VALUES ($1, {NOW}, {NOW} + $3, $2)
  ON CONFLICT (name) DO UPDATE SET ends = {NOW} + $3, holder = EXCLUDED.holder,
    fence = CASE WHEN l.holder = EXCLUDED.holder THEN l.fence
      ELSE greatest(EXCLUDED.fence, l.fence + 1) END
    WHERE l.holder = EXCLUDED.holder OR l.ends <= {NOW}
  RETURNING l.fence
""")

# Its fence stays, for the next one to be above it.
_GIVE_UP: Final = """
UPDATE {schema}.lease SET holder = '', ends = 0 WHERE name = $1 AND holder = $2
"""

_HOLDS: Final = fill("""
SELECT EXISTS (SELECT FROM {schema}.lease WHERE name = $1 AND fence = $2 AND {NOW} < ends)
""")

_ASK: Final = Function(
    "ask",
    "p_body bytea, p_shared bigint, p_open bigint, p_kept bigint, p_most bigint, OUT asked bigint",
    5,
    """
DECLARE
  now bigint;
BEGIN
  LOCK TABLE {schema}.question IN SHARE ROW EXCLUSIVE MODE;
  now := {NOW};
  DELETE FROM {schema}.question AS q WHERE now >= q.asked + p_open;
  DELETE FROM {schema}.answer AS a WHERE a.number < now - p_kept;
  SELECT max(q.number) INTO asked FROM {schema}.question AS q
    WHERE q.body = p_body AND now < q.asked + p_shared;
  IF asked IS NULL AND (SELECT count(*) FROM {schema}.question) < p_most THEN
    SELECT greatest(now, max(q.number) + 1) INTO asked FROM {schema}.question AS q;
    INSERT INTO {schema}.question VALUES (asked, now, p_body);
  END IF;
END
""",
)

MEMBER_FUNCTIONS: Final = (_ASK,)

_CLOSE: Final = "DELETE FROM {schema}.question WHERE number = $1"

_ANSWER: Final = """
INSERT INTO {schema}.answer VALUES ($1, $2, $3)
  ON CONFLICT (number, node) DO UPDATE SET body = EXCLUDED.body
"""

# Nodes in hexadecimal, joined by commas: their names may have any characters.
_ANSWERS: Final = """
SELECT node, body FROM {schema}.answer
  WHERE number = $1 AND encode(node, 'hex') <> ALL (string_to_array($2, ','))
"""


class PostgresMembers(Members):
    """See the module.

    Args:
        ask: has a statement done, on whichever server there is: members are asked also while the
            log is known to have lost records, since they are what finds out how to go on.
    """

    def __init__(self, ask: Callable[..., Awaitable[Sequence[Row]]]) -> None:
        self._ask = ask

    async def beat(self, node: str, state: bytes) -> BeatReply:
        check_state(state)
        rows = await self._ask(_BEAT, node.encode(), state, round(OPEN * _SECOND))
        match rows:
            case [[int(now), int(offset), *_], *_]:
                pass
            case _:
                raise EngineUnavailable(_NONSENSE)
        questions = []
        for row in rows:
            match row:
                case [_, _, int(number), bytes(body)]:
                    questions.append(Question(number, body))
        return BeatReply(now / _SECOND, offset, questions)

    async def all(self) -> Sequence[Member]:
        oldest = round(FORGOTTEN * _SECOND)
        await self._ask(_FORGET, oldest)
        members = []
        for row in await self._ask(_ALL, oldest):
            match row:
                case [bytes(node), int(age), bytes(state)]:
                    members.append(Member(node.decode(), state, age / _SECOND))
        return sorted(members, key=lambda each: each.node)

    async def leave(self, node: str) -> None:
        await self._ask(_LEAVE, node.encode())

    async def take(self, name: str, node: str, seconds: float) -> int | None:
        rows = await self._ask(_TAKE, name.encode(), node.encode(), round(seconds * _SECOND))
        match rows:
            case [[int(fence)]]:
                return fence
            case _:
                return None

    async def give_up(self, name: str, node: str) -> None:
        await self._ask(_GIVE_UP, name.encode(), node.encode())

    async def holds(self, name: str, fence: int) -> bool:
        rows = await self._ask(_HOLDS, name.encode(), fence)
        return bool(rows[0][0])

    async def ask(self, body: bytes, most: int = MAX_QUESTIONS) -> int:
        check_question(body)
        rows = await self._ask(
            _ASK.call,
            body,
            round(SHARED * _SECOND),
            round(OPEN * _SECOND),
            round((OPEN + ANSWERED) * _SECOND),
            most,
        )
        match rows:
            case [[int(number)]]:
                return number
            case _:
                raise TooManyQuestions

    async def close(self, number: int) -> None:
        await self._ask(_CLOSE, number)

    async def answer(self, number: int, node: str, body: bytes) -> None:
        check_answer(body)
        await self._ask(_ANSWER, number, node.encode(), body)

    async def answers(self, number: int, known: Collection[str] = ()) -> Mapping[str, bytes]:
        hexed = [each.encode().hex() for each in known]
        answers = {}
        for row in await self._ask(_ANSWERS, number, ",".join(hexed)):
            match row:
                case [bytes(node), bytes(body)]:
                    answers[node.decode()] = body
        return answers

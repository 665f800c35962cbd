"""Questions to another server: a POST of JSON, answered by JSON.

A question is asked once for all tasks that wait for its answer, in a task of its own: a peer that
comes and goes has no more of them asked than one that stays. At most so many are asked at a
time, and others wait for their turn; waiting counts as part of the second that each has. Beyond
that, nobody waits: the answer is that it can't be told now. Turns are fair to askers, such as
addresses, and none has more than half of the room: a peer that makes up a thousand credentials
keeps nobody at another address waiting.

The other server can tell that a question is from here by its signature, where both have a secret:

    Mist-Signature: t=1798761600,v1=HEX      HMAC-SHA-256 of `1798761600.BODY`
"""

import hmac
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec
import trio

from mist.auth.callout.backend import Backend
from mist.auth.web import WebError
from mist.fair_limiter import FairLimiter

__all__ = ["MAX_TTL", "Answer", "Questions", "Unanswered"]

log = logging.getLogger("mist.auth.callout")

TIMEOUT: Final = 1.0  # seconds for a question
MAX_TTL: Final = 86_400.0  # seconds that an answer may hold
_LEAST_TTL: Final = 1.0
_TTL: Final = 60.0  # where the answer doesn't say
_TTL_OF_NO: Final = 5.0  # likewise
_AT_ONCE: Final = 64  # questions
_WAITING: Final = 1_024  # those that are asked, and those that wait for their turn
_OF_ONE: Final = _WAITING // 2  # of these, that one asker may have
_REFUSED: Final = (401, 403)


class Unanswered(Exception):
    """There is no answer that can be used. Who asked has to take it for a no, for now.

    Attributes:
        reason: one word for a count.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@attrs.frozen
class Answer:
    """An answer.

    Attributes:
        says: the JSON object; None where the status was 401 or 403.
        ttl: seconds for which it holds.
        ttl_of_no: the same, where what it says is a no.
    """

    says: Mapping[str, Any] | None
    ttl: float
    ttl_of_no: float


@attrs.define(eq=False)
class _Question:
    answer: Answer | None = None
    failure: str = ""
    done: trio.Event = attrs.field(factory=trio.Event)


class Questions:
    """See the module. `run` has to be running.

    Args:
        backend: which they are posted to; closed by `run`.
        secret: for signatures; None for none.
        clock: Unix seconds.

    Attributes:
        failures: by reason, since the start.
    """

    def __init__(self, backend: Backend, secret: bytes | None, clock: Callable[[], float]) -> None:
        self.failures: Counter[str] = Counter()
        self._backend = backend
        self._secret = secret
        self._clock = clock
        self._limiter = FairLimiter(_AT_ONCE)
        self._asked: dict[bytes, _Question] = {}
        self._askers: Counter[str] = Counter()  # how many of these are each one's
        self._failing = False
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Ask, until cancelled."""
        async with self._backend, trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def ask(self, key: bytes, said: Mapping[str, object], *, asker: str) -> Answer:
        """Ask, or wait for the answer to the same question where it is being asked.

        Args:
            key: of the question: two with the same key are the same.
            said: the JSON object that is sent.
            asker: whose it is, among whom turns are shared: an address, or a token's id.

        Raises:
            Unanswered: see there.
        """
        question = self._asked.get(key)
        if question is None:
            is_full = len(self._asked) >= _WAITING or self._askers[asker] >= _OF_ONE
            if self._nursery is None or is_full:
                self.failures["busy"] += 1
                raise Unanswered("busy")
            question = self._asked[key] = _Question()
            self._askers[asker] += 1
            self._nursery.start_soon(self._put, key, question, msgspec.json.encode(said), asker)
        await question.done.wait()
        if question.answer is None:
            raise Unanswered(question.failure)
        return question.answer

    async def _put(self, key: bytes, question: _Question, body: bytes, asker: str) -> None:
        question.failure = "timeout"
        try:
            with trio.move_on_after(TIMEOUT):
                async with self._limiter.place(asker):
                    question.answer = await self._post(body, asker)
        except WebError as error:
            question.failure = error.reason
        except Exception:  # whatever a foreign server brings about, this one goes on
            question.failure = "error"
            log.exception("a question failed")
        finally:
            del self._asked[key]
            self._askers[asker] -= 1
            if not self._askers[asker]:
                del self._askers[asker]
            self._note(question)
            question.done.set()

    def _note(self, question: _Question) -> None:
        if question.answer is None:
            self.failures[question.failure] += 1
            if not self._failing:
                log.warning("a question has no answer that can be used: %s", question.failure)
        elif self._failing:
            log.info("questions are answered again")
        self._failing = question.answer is None

    async def _post(self, body: bytes, asker: str) -> Answer:
        headers = {}
        if self._secret is not None:
            now = str(int(self._clock()))
            signature = hmac.digest(self._secret, now.encode() + b"." + body, "sha256").hex()
            headers["mist-signature"] = f"t={now},v1={signature}"
        status, text = await self._backend.post(body, headers, asker)
        if status in _REFUSED:
            return Answer(None, _TTL_OF_NO, _TTL_OF_NO)
        if status != 200:
            raise WebError("status", f"status {status}")
        try:
            says = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise WebError("malformed", "the answer is no JSON object") from None
        return Answer(says, _ttl(says, _TTL), _ttl(says, _TTL_OF_NO))


def _ttl(says: Mapping[str, Any], unsaid: float) -> float:
    ttl = says.get("ttl", unsaid)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise WebError("malformed", "ttl is no number of seconds")
    if ttl < 0:
        raise WebError("malformed", "ttl is negative")
    # Bounded before it is a float: JSON has numbers that none can hold.
    return float(min(max(ttl, _LEAST_TTL), MAX_TTL))

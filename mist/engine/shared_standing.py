"""Where an engine's log stands now, asked by many at once: one call answers all who wait for it.

Who asks gets an answer to a call that began afterwards. So it has all that any node had
acknowledged by then, and however many ask, one call is under way.
"""

import trio

from mist.engine.contract import Engine, EngineUnavailable, Forked, Standing

__all__ = ["SharedStanding"]


class SharedStanding:
    """See the module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asking = trio.Lock()
        self._begun = 0  # calls
        self._answered = 0  # the number of the last one with an outcome
        self._outcome: Standing | EngineUnavailable | Forked = EngineUnavailable()

    async def ask(self) -> Standing:
        """Where the log stands; see the module.

        Raises:
            EngineUnavailable: it doesn't answer.
            Forked: see `Engine.standing`.
        """
        before = self._begun
        async with self._asking:
            if self._answered <= before:
                self._begun += 1
                number = self._begun
                try:
                    self._outcome = await self._engine.standing()
                except (EngineUnavailable, Forked) as error:
                    self._outcome = error.as_value()
                self._answered = number
            if isinstance(self._outcome, EngineUnavailable | Forked):
                raise self._outcome.as_value()
            return self._outcome

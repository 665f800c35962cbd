"""What goes wrong with engines, for those who have none open, too."""

from mist.errors import MistError

__all__ = ["EngineUnavailable", "TooManyQuestions"]


class EngineUnavailable(MistError):
    """The engine can't be reached, or does not answer in time.

    Whether it did what it was asked is not known; ask again.
    """

    code = "engine_unavailable"
    message = "The engine is unavailable"


class TooManyQuestions(MistError):
    """As many questions are open as may be. Ask later."""

    code = "too_many_questions"
    message = "Too many questions are open"

"""A clock for what measures its own work."""


class Clock:
    """A clock that work moves on. Seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds

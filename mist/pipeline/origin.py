"""The origin of a job's messages: an archive or a server, and a selection."""

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from mist.archive import Archive
from mist.pipeline.errors import BadInput
from mist.pipeline.selection import Range, parse_alternatives
from mist.pipeline.source.address import Address
from mist.pipeline.source.client import check_server
from mist.pipeline.source.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Origin"]


@attrs.frozen
class Origin:
    """The folder of an archive or the URL of a server, and a selection of its messages.

    Attributes:
        archive, url: exactly one of them.
        secret, token: credential for the server.
        subscribe: `a,b; c`; None selects all messages.
        start, end: an id or an ISO 8601 time, half open; None is no limit.
        skip_lost: skip messages that are gone, instead of failing.
    """

    archive: Path | None = None
    url: str | None = None
    secret: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    subscribe: str | None = None
    start: str | None = None
    end: str | None = None
    skip_lost: bool = False

    def check(self) -> None:
        """Validate the origin, before Spark is started for it.

        Raises:
            BadInput: both an archive and a URL are given, or neither.
            ArchiveMissing, InvalidSelection, InvalidOption: as their names say.
        """
        if (self.archive is None) == (self.url is None):
            raise BadInput("give --archive or --server: one of them")
        parse_alternatives(self.subscribe)
        Range.parse(self.start, self.end)
        if self.archive is not None:
            Archive.open(self.archive)
        ReadOptions.parse(self.options())

    def check_server(self) -> None:
        """Check that the server, if it is one, is reachable and authorizes us.

        Raises:
            ServerUnavailable, ServerRefused: from the server.
        """
        if self.url is not None:
            check_server(Address.parse(self.url, self.secret, self.token))

    @property
    def range(self) -> Range:
        """The range from start to end."""
        return Range.parse(self.start, self.end)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The messages, read with `spark.read.format("mist")`: partitioned, ordered by id."""
        reader = spark.read.format("mist")
        for name, value in self.options().items():
            reader = reader.option(name, value)
        return reader.load()

    def options(self) -> dict[str, str]:
        """The options of `format("mist")` for it, including credentials."""
        found = {
            "path": None if self.archive is None else str(self.archive.absolute()),
            "url": self.url,
            "secret": self.secret,
            "token": self.token,
            "subscribe": self.subscribe,
            "failOnDataLoss": "false" if self.skip_lost else None,
        }
        for name, text in (("starting", self.start), ("ending", self.end)):
            if text is not None:
                kind = "Offsets" if text.strip().isdecimal() else "Timestamp"
                found[name + kind] = text
        return {name: value for name, value in found.items() if value is not None}

    def described(self) -> list[tuple[str, str]]:
        """A description for people, as (label, text); without credentials."""
        where = ("archive", str(self.archive)) if self.archive else ("server", self._server())
        return [
            where,
            ("tags", self.subscribe or "all"),
            ("from", self.start or "the beginning"),
            ("until", self.end or "the end"),
        ]

    def _server(self) -> str:
        assert self.url is not None
        return Address.parse(self.url, self.secret, self.token).name
